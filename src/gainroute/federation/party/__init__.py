"""What runs a party: settings, where answers and views come from, quotas, the audit log, and the process itself."""

__all__: list[str] = []
