"""Memory that is used again, and for nothing else meanwhile."""

import pickle

import torch

from elmokit.nn.room import Room, Rooms


def test_an_array_has_its_shape_and_type() -> None:
    room = Room()
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        taken = room.take("a", (3, 5), dtype)
        taken.fill_(7)
        assert taken.shape == (3, 5) and taken.dtype == dtype and taken.is_contiguous() and bool((taken == 7).all())
    assert room.take("a", (2, 0, 4), torch.float32).shape == (2, 0, 4)


def test_memory_is_used_again_under_its_name() -> None:
    room = Room()
    first, other = room.take("a", (8, 10), torch.float32), room.take(("a", 1), (8, 10), torch.float32)
    assert room.take("a", (5,), torch.bfloat16).data_ptr() == first.data_ptr() != other.data_ptr()
    assert room.take("a", (8, 11), torch.float32).data_ptr() == first.data_ptr()  # a little more was taken at once
    first.fill_(1)
    other.fill_(2)
    larger = room.take("a", (800, 10), torch.float32)
    larger.fill_(3)
    assert bool((first == 1).all()) and bool((other == 2).all())  # who still has the old array keeps it


def test_a_copy_begins_empty() -> None:
    room = Room()
    room.take("a", (1000,), torch.float32)
    assert not pickle.loads(pickle.dumps(room))._memory


def test_rooms_are_those_in_use_at_a_time() -> None:
    rooms = Rooms()
    with rooms.one() as first, rooms.one() as second:
        assert first is not second
        first.take("a", (1000,), torch.float32)
    with rooms.one() as again:
        assert again in (first, second)
    assert len(rooms._free) == 2 and not pickle.loads(pickle.dumps(rooms))._free
