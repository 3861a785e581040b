import logging
import os

import pytest

from spec_trt.runtime.kernel_cache import SECONDS_UNSAVED, KernelCache, kernel_cache
from tests.runtime.fake_tensorrt import FakeRuntimeCache


@pytest.fixture
def cache(tmp_path):
    return KernelCache(tmp_path / "cache" / "one.kernels")


def kernels_in(cache):
    loaded = FakeRuntimeCache()
    cache.load(loaded)
    return loaded.kernels


def test_what_was_compiled_is_there_the_next_time(cache, caplog):
    assert kernels_in(cache) == set()
    cache.save(FakeRuntimeCache({"a", "b"}))
    assert kernels_in(cache) == {"a", "b"}
    assert cache.path.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in cache.path.parent.iterdir()] == ["one.kernels"]
    assert not caplog.records


def test_nothing_new_is_not_written_again(cache):
    cache.save(FakeRuntimeCache({"a"}))
    again, loaded = KernelCache(cache.path), FakeRuntimeCache()
    again.load(loaded)
    cache.path.unlink()
    again.save(loaded)
    assert not cache.path.exists()
    loaded.kernels.add("b")
    again.save(loaded)
    assert kernels_in(cache) == {"a", "b"}


def test_what_was_compiled_is_kept_a_while_after_and_not_at_every_look(tmp_path):
    seconds = [0.0]
    cache = KernelCache(tmp_path / "one.kernels", clock=lambda: seconds[0])
    compiled = FakeRuntimeCache({"a"})
    cache.save_if_due(compiled)
    cache.expect_more()
    seconds[0] = SECONDS_UNSAVED - 1
    cache.expect_more()
    cache.save_if_due(compiled)
    assert not cache.path.exists()
    seconds[0] = SECONDS_UNSAVED
    cache.save_if_due(compiled)
    assert kernels_in(KernelCache(cache.path)) == {"a"}
    cache.path.unlink()
    seconds[0] = 10 * SECONDS_UNSAVED
    cache.save_if_due(compiled)
    cache.save(compiled)
    assert not cache.path.exists()


def test_what_a_killed_process_left_half_written_is_removed(cache):
    cache.save(FakeRuntimeCache({"a"}))
    left, under_way = (cache.path.parent / f".two.kernels.{name}" for name in ("old", "new"))
    for entry in (left, under_way):
        entry.write_bytes(b"half")
    os.utime(left, (0, 0))
    cache.save(FakeRuntimeCache({"a", "b"}))
    assert sorted(entry.name for entry in cache.path.parent.iterdir()) == [".two.kernels.new", "one.kernels"]


def flip(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("damage", [flip, lambda content: content[:-1], lambda _content: b"", lambda _content: b"MZ"])
def test_a_damaged_file_is_ignored_with_a_word(cache, damage, caplog):
    cache.save(FakeRuntimeCache({"a"}))
    cache.path.write_bytes(damage(cache.path.read_bytes()))
    assert kernels_in(cache) == set()
    assert len(caplog.records) == 1
    assert "one.kernels are ignored (they are damaged, or of another GPU" in caplog.text


def test_so_is_one_that_the_library_refuses(cache, caplog):
    class Foreign(FakeRuntimeCache):
        def serialize(self):
            return bytearray(b"of another GPU")

    cache.save(Foreign())
    assert kernels_in(cache) == set()
    assert "are ignored" in caplog.text


def test_what_goes_wrong_is_a_word_and_no_more(cache, caplog):
    class Failing(FakeRuntimeCache):
        def serialize(self):
            raise RuntimeError("out of\nmemory")

        def deserialize(self, _blob):
            raise RuntimeError("no CUDA\ncontext")

    cache.save(FakeRuntimeCache({"a"}))
    cache.load(Failing())
    cache.save(Failing())
    blocked = KernelCache(cache.path / "below a file" / "two.kernels")
    blocked.save(FakeRuntimeCache({"a"}))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert "can't be read (no CUDA context)" in caplog.text
    assert "can't be kept (out of memory)" in caplog.text
    assert "Not a directory" in caplog.text


def test_all_engines_kernels_have_one_bound(tmp_path):
    caches = [KernelCache(tmp_path / f"{name}.kernels", max_bytes=250) for name in "abc"]
    for cache in caches[:2]:
        cache.save(FakeRuntimeCache({"x" * 30}))
    kernels_in(caches[0])  # used later than the other
    caches[2].save(FakeRuntimeCache({"x" * 30}))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.kernels", "c.kernels"]
    caches[1].save(FakeRuntimeCache({"x" * 300}))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.kernels", "c.kernels"]


def test_every_engine_gpu_and_version_has_a_file_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    facts = {"gpu": "RTX 4090", "library_version": "1.7"}
    every = [facts, facts | {"gpu": "RTX 3090"}, facts | {"library_version": "1.8"}]
    paths = {found.path for digest in ("aa", "bb") for one in every if (found := kernel_cache(digest, **one))}
    assert len(paths) == 6
    assert {path.parent for path in paths} == {tmp_path / "spec-trt"}


@pytest.mark.parametrize("given", ["", "not/absolute"])
def test_without_a_cache_directory_it_is_that_of_the_home(monkeypatch, tmp_path, given):
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = kernel_cache("aa", gpu="RTX 4090", library_version="1.7")
    assert found is not None
    assert found.path.parent == tmp_path / ".cache" / "spec-trt"


def test_a_user_without_a_home_keeps_nothing(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def nowhere():
        raise RuntimeError("no home")

    monkeypatch.setattr("spec_trt.runtime.kernel_cache.Path.home", nowhere)
    assert kernel_cache("aa", gpu="RTX 4090", library_version="1.7") is None
