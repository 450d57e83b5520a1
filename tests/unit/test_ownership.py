"""One step of a group: the nine transitions of the founding document and our two, as they happen."""

from shoal.core.events import Retire, Sync
from shoal.core.resharding import split
from tests.unit.group_world import World, kinds

# --- The nine transitions, and the two additions, as steps bring them about. ------------------------


def test_1_and_2_a_child_is_born_waiting_and_is_free_when_its_parent_has_ended() -> None:
    world = World(1)
    world.append(0, 5)
    assert "born" in kinds(world.split(0))
    assert world.states() == ["not_alloc", "wait", "wait"]
    world.consume(0)
    assert world.states() == ["over", "not_alloc", "not_alloc"]


def test_3_a_free_shard_is_given_to_a_consumer() -> None:
    world = World(2)
    assert kinds(world.join("a1")) == ["joined", "granted", "granted"]
    assert world.states() == ["already_alloc"] * 2
    assert [world.claim(0).epoch, world.claim(1).epoch] == [1, 2]


def test_4_the_shards_of_a_consumer_that_fell_silent_are_free() -> None:
    world = World(2, "a")
    world.save(0, 7)
    assert kinds(world.expire("a1")) == ["expired"]
    assert world.states() == ["not_alloc"] * 2
    assert (world.claim(0).checkpoint, world.claim(0).epoch) == (7, 1)
    assert world.status("a1") == "gone"


def test_5_and_6_a_shard_too_many_is_taken_back_and_handed_to_the_next_consumer() -> None:
    world = World(2, "a")
    assert kinds(world.join("b1")) == ["joined", "moving"]
    assert (world.states(), world.owners()) == (["already_alloc", "transfer"], ["a1", "a1"])
    assert kinds(world.release("a1", 1)) == ["released", "granted"]
    assert (world.states(), world.owners()) == (["already_alloc"] * 2, ["a1", "b1"])


def test_6_the_owner_keeps_a_shard_whose_next_consumer_is_gone() -> None:
    world = World(2, "a", "b")
    before = world.claim(1)
    world.expire("b1")
    assert (world.states(), world.owners()) == (["already_alloc"] * 2, ["a1", "a1"])
    assert world.claim(1).epoch == before.epoch


def test_7_a_forced_checkpoint_opens_a_shard_that_is_over() -> None:
    world = World(1)
    world.append(0, 5)
    world.split(0)
    world.consume(0)
    assert kinds(world.rewind({0: 2})) == ["rewound", "reopened"]
    assert (world.states()[0], world.claim(0).checkpoint) == ("not_alloc", 2)


def test_8_a_closed_shard_is_over_at_its_end() -> None:
    world = World(1, "a")
    world.append(0, 5)
    world.save(0, 5)
    world.split(0)
    assert world.states() == ["over", "already_alloc", "already_alloc"]
    assert world.claim(0).owner is None


def test_9_a_shard_whose_owner_falls_silent_in_transfer_is_free_if_nobody_is_next() -> None:
    world = World(2, "a", "b")
    world.step(Retire(incarnation="b1"))
    world.step(Retire(incarnation="a1"))
    world.join("c1")
    world.leave("c1")
    assert world.states() == ["transfer", "transfer"]
    assert kinds(world.expire("a1")) == ["expired"]
    assert world.states() == ["not_alloc", "not_alloc"]


def test_9_a_shard_whose_owner_falls_silent_in_transfer_goes_to_the_next_consumer() -> None:
    world = World(2, "a", "b")
    world.save(1, 9)
    assert kinds(world.expire("a1")) == ["expired", "granted", "granted"]
    assert world.owners() == ["b1", "b1"]
    assert world.claim(1).checkpoint == 9


def test_a_an_empty_closed_shard_is_born_over() -> None:
    world = World(1)
    world.shards = split(world.shards, world.shards[0], None, 1)
    world.shards = split(world.shards, world.shards[1], None, 2)
    assert "born" in kinds(world.step(Sync()))
    assert world.states() == ["over", "over", "not_alloc", "not_alloc", "not_alloc"]


def test_b_after_a_forced_checkpoint_the_machine_begins_anew_once_its_holder_has_let_go() -> None:
    world = World(1, "a")
    world.append(0, 5)
    world.save(0, 5)
    world.rewind({0: 1})
    assert (world.states(), world.claim(0).checkpoint, world.claim(0).is_fenced) == (["transfer"], 5, True)
    assert kinds(world.release("a1")) == ["released", "granted"]
    assert (world.states(), world.claim(0).checkpoint) == (["already_alloc"], 1)
