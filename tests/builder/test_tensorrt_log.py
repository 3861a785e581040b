"""What the libraries say, in a file and in an error."""

import logging

from spec_trt.builder.tensorrt.library_log import LibraryLog, last_words


def say(log, level, text):
    log.handle(logging.LogRecord("Polygraphy", level, "", 0, text, None, None))


def test_first_error_is_the_reason_and_all_is_kept(tmp_path):
    log = LibraryLog(tmp_path / "log")
    assert log.reason == "the library gave no reason"
    say(log, logging.WARNING, "[W] careful")
    say(log, logging.DEBUG, "[V] going on")
    say(log, logging.ERROR, "[E] no tactic\n    in layer 3")
    say(log, logging.WARNING, "[W] late")
    say(log, logging.ERROR, "[E] no engine")
    assert log.reason == log.reason_and_cause == "no tactic in layer 3"
    said = "[W] careful\n[V] going on\n[E] no tactic\n    in layer 3\n[W] late\n[E] no engine\n"
    assert (tmp_path / "log").read_text() == said
    log.close()


def test_warning_right_before_an_error_belongs_to_it(tmp_path):
    log = LibraryLog(tmp_path / "log")
    say(log, logging.WARNING, "[W] beyond the\n  workspace limit")
    say(log, logging.ERROR, "[E] no tactic")
    assert log.reason == "no tactic"
    assert log.reason_and_cause == "no tactic (warned before: beyond the workspace limit)"
    log.close()


def test_reason_is_cut_where_it_is_long(tmp_path):
    log = LibraryLog(tmp_path / "log")
    say(log, logging.ERROR, "[E] " + "word " * 1000)
    assert log.reason.endswith(" ...")
    assert len(log.reason) < 600
    log.close()


def test_last_words_of_a_process_that_ended(tmp_path):
    path = tmp_path / "log"
    assert last_words(path) == "the library gave no reason"
    path.write_text("[W] first\n[W] last\n[V] more\n")
    assert last_words(path) == "last"
    path.write_text("[W] last\n[V] more\nmalloc(): corrupted\n\n")
    assert last_words(path) == "last; malloc(): corrupted"
    path.write_text("Traceback (most recent call last):\nKeyError: 'x'\n")
    assert last_words(path) == "KeyError: 'x'"
