"""Identities and access: the private certificate authority, certificates, TLS credentials, who may call a party."""

__all__: list[str] = []
