"""The gRPC front door's port: limits of connections, TLS, and draining."""

from __future__ import annotations

import logging
from typing import Any

import grpc
from grpc import aio

from gainroute.errors import SettingError
from gainroute.federation.coordinator.auth import Authenticator
from gainroute.federation.coordinator.connections import RESERVED, most_connections
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.grpc_door.service import InferenceService
from gainroute.federation.coordinator.settings import ServerSettings

__all__ = ["GrpcDoor"]

log = logging.getLogger("gainroute.coordinator")

IDENTITY_ONLY = 1  # a bit set of compression algorithms: none
AGE_SECONDS = 600.0  # after which a client is asked to connect again; a call that its client does not read ends so


class GrpcDoor:
    """Serves the Open Inference Protocol on ``[server] grpc_port``.

    The port is bound at once, so that one in use fails early. Created and used in one event loop.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._started = False
        self._pem = self._configured = None if settings.certificate is None else self._read_pem()
        most = most_connections(settings)
        self._server = aio.server(options=_options(settings, most), maximum_concurrent_rpcs=most + RESERVED)
        host = f"[{settings.host.strip('[]')}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.grpc_port}"
        try:
            self.port = int(
                self._server.add_insecure_port(address)
                if self._pem is None
                else self._server.add_secure_port(address, self._credentials())
            )
        except RuntimeError:
            raise SettingError(f"cannot listen on {address} for gRPC; choose another host or grpc_port") from None
        self.address = f"{host}:{self.port}"

    async def start(self, coordinator: Coordinator, authenticator: Authenticator) -> None:
        """Answer calls."""
        self._server.add_generic_rpc_handlers(InferenceService(coordinator, authenticator).handlers())
        await self._server.start()
        self._started = True
        coordinator.doors["gRPC"] = lambda: self._started
        log.info("gRPC is served on %s", self.address, extra={"address": self.address})

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, and finish those in flight for up to `grace` seconds."""
        self._started = False
        await self._server.stop(grace)

    # ---- TLS -----------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Present the certificate that is in the files now, from the next connection on."""
        if self._pem is not None:
            self._pem = self._read_pem()

    def _read_pem(self) -> tuple[bytes, bytes]:
        certificate, key = self._settings.certificate, self._settings.key
        assert certificate is not None and key is not None  # noqa: S101, PT018 (the settings say so)
        try:
            return key.read_bytes(), certificate.read_bytes()
        except OSError as error:
            raise SettingError(f"server: {error.filename} cannot be read ({error.strerror})") from None

    def _credentials(self) -> grpc.ServerCredentials:
        def configuration() -> Any:
            return grpc.ssl_server_certificate_configuration([self._pem])

        def changed() -> Any:  # at every new connection, in a thread of gRPC
            if self._pem is self._configured:
                return None
            self._configured = self._pem
            return configuration()

        return grpc.dynamic_ssl_server_credentials(configuration(), changed, require_client_authentication=False)


def _options(settings: ServerSettings, most: int) -> list[tuple[str, int]]:
    def milliseconds(seconds: float) -> int:
        return max(1, round(1e3 * seconds))

    return [
        ("grpc.so_reuseport", 0),  # two coordinators on one port is an error
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        # Compressed messages are refused, and nothing decompresses them before that.
        ("grpc.compression_enabled_algorithms_bitset", IDENTITY_ONLY),
        ("grpc.per_message_decompression", 0),
        ("grpc.max_metadata_size", settings.max_header_bytes),
        ("grpc.absolute_max_metadata_size", settings.max_header_bytes),
        ("grpc.max_allowed_incoming_connections", most),
        ("grpc.max_concurrent_streams", settings.max_connections_per_address),
        ("grpc.server_handshake_timeout_ms", milliseconds(settings.header_seconds)),
        ("grpc.max_connection_idle_ms", milliseconds(settings.idle_seconds)),
        ("grpc.max_connection_age_ms", milliseconds(AGE_SECONDS)),
        ("grpc.max_connection_age_grace_ms", milliseconds(settings.body_seconds)),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
