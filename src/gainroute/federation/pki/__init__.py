"""Who is who: the private certificate authority, certificates, credentials, access lists."""

__all__: list[str] = []
