"""The party process: settings, model versions, views, quotas, the audit log and the service itself."""

__all__: list[str] = []
