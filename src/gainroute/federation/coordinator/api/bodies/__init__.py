"""Bodies of requests and responses, for the OpenAPI schema.

Requests are not parsed with these: the code that reads them says more about what is wrong. Tests compare both.
"""

__all__: list[str] = []
