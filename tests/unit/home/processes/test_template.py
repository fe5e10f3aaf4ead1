"""The loop of the template."""

import os
import socket
from functools import partial
from pathlib import Path

from serving.home.processes.processrecords import ProcessRecords
from serving.home.processes.template import Template


def test_the_next_owner_of_a_descriptor_gets_no_event_of_the_last(tmp_path: Path) -> None:
    with socket.socket() as listener:
        template = Template(listener, events=os.pipe(), records=ProcessRecords(tmp_path))
        pipes, called = [os.pipe(), os.pipe()], []

        def replaces(number: int) -> None:
            # Whichever is first closes the other, whose number goes to a third that is readable too.
            called.append(number)
            other = pipes[1 - number][0]
            template._selector.unregister(other)
            os.close(other)
            again = os.dup(pipes[number][0])
            assert again == other
            template._follow(again, lambda: called.append(2))

        for number, (reader, writer) in enumerate(pipes):
            os.write(writer, b"x")
            template._follow(reader, partial(replaces, number))
        template._turn(0)
        assert len(called) == 1
        template._selector.unregister(pipes[called[0]][0])
        template._turn(0)
        assert called[1:] == [2]
