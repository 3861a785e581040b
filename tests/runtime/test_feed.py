import threading

import pytest

from spec_trt.runtime.feed import Feed
from spec_trt.runtime.stop import Emission


def piece(finish_reason=None):
    return Emission(text="a", token_ids=[1], finish_reason=finish_reason)


def test_who_waits_for_the_end_is_not_woken_by_every_piece(monkeypatch):
    feed, woken = Feed(), list[None]()
    notify_all = feed._over.notify_all
    monkeypatch.setattr(feed._over, "notify_all", lambda: woken.append(notify_all()))
    waiting = threading.Thread(target=feed.wait)
    waiting.start()
    for _ in range(3):
        feed.put(piece())
    assert not woken
    assert waiting.is_alive()
    feed.put(piece("length"))
    waiting.join(timeout=10)
    assert not waiting.is_alive()
    assert len(woken) == 1


def test_who_waits_for_a_piece_is_woken_by_it_or_by_the_end():
    feed, seen = Feed(), list[bool]()
    waiting = threading.Thread(target=lambda: seen.extend(feed.wait(count, timeout=10) for count in range(3)))
    waiting.start()
    feed.put(piece())
    feed.put(piece())
    feed.fail(ValueError())
    waiting.join(timeout=10)
    assert seen == [True, True, True]
    assert feed.wait(7)
    assert feed.wait()


@pytest.mark.parametrize("seen", [None, 1])
def test_waiting_ends_at_its_timeout(seen):
    feed = Feed()
    feed.put(piece())
    assert not feed.wait(seen, timeout=0.001)
