"""The address of a party selects its transport: gRPC by default, otherwise by name."""

from __future__ import annotations

import asyncio
import sys
import types

import numpy as np
import pytest
from party_helpers import CLASSES, DIMENSION, MODEL, Federation, StubParty

from gainroute.errors import SettingError
from gainroute.federation.transport.base import connect, transports
from gainroute.federation.transport.grpc_client import GrpcConnection


def test_without_a_name_it_is_grpc(tmp_path):
    files = Federation(tmp_path).files("coordinator", "main")
    for address in ("host:7443", "grpc://host:7443"):
        connection = connect("a", address, files)
        assert isinstance(connection, GrpcConnection)
        assert connection.address == "host:7443"
    with pytest.raises(SettingError, match="ca, certificate and key"):
        connect("a", "host:7443", None)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(SettingError, match="transport is 'pigeon'; allowed are 'grpc', 'in-process'"):
        connect("a", "pigeon://roof")


def test_a_party_in_process_is_made_by_a_factory(monkeypatch):
    module, party = types.ModuleType("party_in_process"), StubParty()
    party.class_names, party.dimension, party.model_hash = CLASSES, DIMENSION, MODEL
    module.make = lambda: party
    monkeypatch.setitem(sys.modules, "party_in_process", module)
    connection = connect("a", "in-process://party_in_process:make")
    reply = asyncio.run(connection.posteriors([3], model=MODEL, request_id="r"))
    np.testing.assert_array_equal(reply.values, party.p[[3]])
    module.make = object
    with pytest.raises(SettingError, match="no usable party"):
        connect("a", "in-process://party_in_process:make")


def test_a_registered_transport_is_selected_by_its_name(monkeypatch):
    monkeypatch.setattr(transports, "_registered", {})
    transports.register("pigeon", lambda name, address, tls: (name, address, tls))
    assert connect("a", "pigeon://roof/2") == ("a", "roof/2", None)
