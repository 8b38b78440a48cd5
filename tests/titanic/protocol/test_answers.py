"""What answers mean to a client: here, those that refuse for want of a permission."""

from __future__ import annotations

import pytest

import broker
from titanic.errors import CallerError, Forbidden, KeyRefused, TitanicError
from titanic.protocol import tsp
from titanic.protocol.answers import check, read_outcomes, read_reply, read_uuids, translate

UUID = "01a1ff29e82d7a2da099783c4f481113"
TEXT = "user 'shop' may not submit to 'mail'; it needs submit = [\"mail\"]"


def test_a_403_of_titanic_is_forbidden_and_says_what_is_missing() -> None:
    for read in (check, lambda reply: read_uuids(reply, 1), lambda reply: read_reply(UUID, reply)):
        with pytest.raises(Forbidden) as caught:
            read(tsp.forbidden(tsp.SUBMIT, TEXT))
        assert str(caught.value) == f"forbidden: {TEXT}"
    with pytest.raises(Forbidden):
        read_outcomes([UUID, UUID], tsp.forbidden(tsp.WAIT, TEXT))
    assert issubclass(Forbidden, CallerError)


@pytest.mark.parametrize("service", [tsp.REQUEST, tsp.REPLY, tsp.CLOSE])
def test_a_400_of_rfc_9_is_the_same_when_a_frame_says_so(service: bytes) -> None:
    refusal = tsp.forbidden(service, TEXT)
    assert refusal == [b"400 forbidden: " + TEXT.encode(), b"forbidden"]
    for read in (check, lambda reply: read_reply(UUID, reply), lambda reply: read_outcomes([UUID], reply)):
        with pytest.raises(Forbidden):
            read(refusal)
    for read in (check, lambda reply: read_reply(UUID, reply)):
        with pytest.raises(TitanicError) as caught:
            read(refusal[:1])
        assert not isinstance(caught.value, Forbidden), "the text is for people"


def test_a_403_of_the_broker_is_the_same() -> None:
    error = translate(broker.RemoteError(403, f"forbidden: {TEXT}"), tsp.SUBMIT, "there", 0.0)
    assert isinstance(error, Forbidden)
    assert str(error) == f"forbidden: {TEXT}"


def test_a_refused_key_keeps_its_reason() -> None:
    error: TitanicError = translate(broker.KeyRefused("the server refused this key"), tsp.SUBMIT, "there", 0.0)
    assert isinstance(error, KeyRefused)
    assert str(error) == "the server refused this key"
