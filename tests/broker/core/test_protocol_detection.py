"""Which broker is at the other end, told by raw frames."""

from __future__ import annotations

import pytest

from broker.core.protocol_detection import BrokerKind, ProtocolDetection

OURS = [b"MDPC01", b"mmi.broker", b'{"software": "titanic"}']


@pytest.fixture
def asked() -> ProtocolDetection:
    detection = ProtocolDetection(["0.2", "0.1"])
    detection.begin()
    assert len(detection.ask()) == 2
    return detection


@pytest.mark.parametrize("service", [b"echo", b"mmi.brokers", b""])
def test_what_answers_neither_question_says_nothing_of_the_broker(asked: ProtocolDetection, service: bytes) -> None:
    """The answer to a request of the connection before this one, for example: any client of 0.1 gets that."""
    for stray in ([b"MDPC01", service, b'{"software": "titanic"}'], [b"MDPW01", b"mmi.broker", b"x"], [b"MDPC01"], []):
        assert asked.learn(stray) is None
    assert asked.learn(OURS) == BrokerKind("0.2", ours=True)


@pytest.mark.parametrize("body", [[b"501"], [], [b"{}"], [b"[]"], [b'{"software": ""}']])
def test_a_broker_that_does_not_tell_what_it_is_is_another(asked: ProtocolDetection, body: list[bytes]) -> None:
    assert asked.learn([b"MDPC01", b"mmi.broker", *body]) == BrokerKind("0.1", ours=False)


def test_the_answer_to_the_other_question_is_not_taken_for_what_a_broker_tells(asked: ProtocolDetection) -> None:
    assert asked.learn([b"MDPC01", b"mmi.service", b'{"software": "titanic"}']) == BrokerKind("0.1", ours=False)


def test_the_first_answer_counts(asked: ProtocolDetection) -> None:
    assert asked.learn(OURS) == BrokerKind("0.2", ours=True)
    assert asked.learn([b"MDPC01", b"mmi.service", b"200"]) == BrokerKind("0.2", ours=True)


def test_each_version_is_asked_once_and_known_by_its_answer(asked: ProtocolDetection) -> None:
    assert asked.learn([b"MDPC02", b"\3", b"mmi.service", b"200"]) is None  # not asked in this one yet
    assert asked.ask() == [], "it may have been stopped: a new connection tells"
    asked.begin()
    assert {frames[1] for frames in asked.ask()} == {b"MDPC01"}
    assert {frames[0] for frames in asked.ask()} == {b"MDPC02"}
    assert asked.ask() == []
    assert asked.learn([b"MDPC02", b"\3", b"mmi.service", b"200"]) == BrokerKind("0.2", ours=False)


@pytest.mark.parametrize("access", [True, False])
def test_a_broker_tells_that_it_has_access_control(access: bool) -> None:
    about = b'{"software": "titanic", "access": %b}' % (b"true" if access else b"false")
    asked = ProtocolDetection(("0.2", "0.1"))
    asked.begin()
    asked.ask()
    assert asked.learn([b"MDPC01", b"mmi.broker", about]) == BrokerKind("0.2", ours=True, access=access)


def test_others_have_none_whatever_they_say() -> None:
    asked = ProtocolDetection(("0.2", "0.1"))
    asked.begin()
    asked.ask()
    assert asked.learn([b"MDPC01", b"mmi.broker", b'{"access": true}']) == BrokerKind("0.1", ours=False)


def test_where_0_1_was_ever_answered_no_other_version_is_asked(asked: ProtocolDetection) -> None:
    asked.learn([b"MDPC01", b"mmi.service", b"404"])
    for _ in range(3):
        asked.begin()
        assert all(frames[:2] == [b"", b"MDPC01"] and frames[-1] for frames in asked.ask())
        assert asked.ask() == []
