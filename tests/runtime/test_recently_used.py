from functools import partial

from spec_trt.runtime.recently_used import RecentlyUsed


def test_the_least_recently_used_makes_room_for_a_new_one():
    made: list[str] = []
    kept: RecentlyUsed[str, str] = RecentlyUsed(2)

    def make(key):
        made.append(key)
        return key.upper()

    assert [kept.get(key, partial(make, key)) for key in "abacab"] == ["A", "B", "A", "C", "A", "B"]
    assert made == ["a", "b", "c", "b"]
    assert len(kept) == 2


def test_what_is_cleared_is_made_again():
    kept: RecentlyUsed[str, object] = RecentlyUsed(1)
    first = kept.get("a", object)
    assert kept.get("a", object) is first
    kept.clear()
    assert kept.get("a", object) is not first
