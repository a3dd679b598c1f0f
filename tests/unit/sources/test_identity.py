"""Who this machine is: boot, name and instance, with a real metadata service on loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import pytest

from healthd.agent.late_metadata import LateMetadata, begun
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.sources.identity import Identity, boot_id, boot_time, find_identity, metadata_endpoint, node_name
from healthd.sources.imds import FastStart, MetadataSource, read_metadata
from healthd.testing import Entry, FakeClock, FakeTree
from tests.support.imds import Imds, serving
from tests.support.limits import limit_s

DMI = "devices/virtual/dmi/id"
NITRO: Mapping[str, Entry] = {
    f"{DMI}/sys_vendor": "Amazon EC2\n",
    f"{DMI}/product_name": "p5.48xlarge\n",
    f"{DMI}/board_asset_tag": "i-0123456789abcdef0\n",
}


@pytest.fixture
def imds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Imds]:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving("i-0123456789abcdef0") as server:
        yield server


# ---------------------------------------------------------------------------------------------------------------------
# the metadata service


def test_a_token_comes_first(imds: Imds) -> None:
    """Version 2: PUT for a token, then GET with it; a proxy in the environment is not used."""
    assert read_metadata(imds.endpoint, "instance-type") == "p5.48xlarge"
    assert imds.requests == ["PUT /latest/api/token", "GET /latest/meta-data/instance-type"]


def test_a_token_serves_for_several_items_and_not_for_ever(imds: Imds) -> None:
    """A daemon that polls asks for a token once in a while, and has a new one before the old one ends."""
    clock = FakeClock()
    source = MetadataSource(imds.endpoint, clock=clock)
    assert (source.read("instance-type"), source.read("no/such/item")) == ("p5.48xlarge", None)
    clock.advance(149)
    assert source.answers()
    assert [line for line in imds.requests if line.startswith("PUT")] == ["PUT /latest/api/token"]
    clock.advance(1)
    assert source.answers()
    assert imds.requests[-2:] == ["PUT /latest/api/token", "GET /latest/meta-data/instance-id"]


def test_a_token_that_the_service_forgot_is_replaced_at_once(imds: Imds) -> None:
    """401 to a token that was good: a new one, once; a service that refuses its own new token is unreadable."""
    source = MetadataSource(imds.endpoint)
    assert source.answers()
    imds.given = "another"
    assert source.read("instance-type") == "p5.48xlarge"
    imds.given, imds.refuses = "a third", True
    with pytest.raises(SourceUnreadable, match="IMDS answered 401 to GET /latest/meta-data/instance-type"):
        source.read("instance-type")


def test_an_item_that_is_not_there_is_missing(imds: Imds) -> None:
    """404 is an answer: there is no such item."""
    with pytest.raises(SourceMissing, match="IMDS has no /latest/meta-data/spot/instance-action"):
        read_metadata(imds.endpoint, "spot/instance-action")


def test_a_refused_token_is_unreadable(imds: Imds) -> None:
    """A service that is switched off answers 403, and that is no item either."""
    imds.token_status = 403
    with pytest.raises(SourceUnreadable, match="IMDS answered 403 to PUT /latest/api/token; expected 200"):
        read_metadata(imds.endpoint, "instance-type")


def test_a_service_that_keeps_silent_is_a_time_out(imds: Imds) -> None:
    """Accepted and not answered: the deadline is kept and named."""
    imds.delay_s, started = 60.0, time.monotonic()
    with pytest.raises(SourceTimeout, match=r"did not answer within 0\.1 s"):
        read_metadata(imds.endpoint, "instance-type", timeout_s=0.1)
    assert time.monotonic() - started < limit_s(3.0)


def test_a_service_that_drips_is_a_time_out(imds: Imds) -> None:
    """A byte at a time, each in time: the deadline is one for the whole exchange."""
    for part in ("head", "body"):
        with dripping(part) as endpoint:
            began = time.monotonic()
            with pytest.raises(SourceTimeout, match=r"did not answer within 0\.5 s"):
                read_metadata(endpoint, "instance-type", timeout_s=0.5)
            assert 0.4 < time.monotonic() - began < limit_s(3.0)


def test_a_service_that_does_not_answer_is_left_alone_for_a_while(imds: Imds) -> None:
    """A start asks for several items: after three the next wait for nothing, and a later one is asked for again."""
    clock = FakeClock()
    source = MetadataSource(imds.endpoint, clock=clock)
    imds.delay_s = 2.0
    for _ in range(3):
        with pytest.raises(SourceTimeout, match="did not answer within 1 s"):
            source.read("instance-id")
    imds.delay_s = 0.0
    clock.advance(9)
    with pytest.raises(SourceTimeout, match="did not answer 9 s ago"):
        source.read("instance-type")
    clock.advance(1)
    assert source.read("instance-type") == "p5.48xlarge"


def test_one_slow_answer_costs_no_other(imds: Imds) -> None:
    """What the next items tell decides which platform this is."""
    source = MetadataSource(imds.endpoint)
    for _ in range(3):
        imds.delay_s = 2.0
        with pytest.raises(SourceTimeout, match="did not answer within 1 s"):
            source.read("instance-id")
        imds.delay_s = 0.0
        assert source.read("no/such/item") is None


def test_a_hurry_waits_for_a_silent_service_once_and_shortly(imds: Imds) -> None:
    """All who ask in one hurry: the first goes without within less than its second, the others ask nobody. After it
    each is answered."""
    hurry, imds.delay_s = FastStart(is_on=True), 60.0
    source = MetadataSource(imds.endpoint, hurry=hurry)
    began = time.monotonic()
    for each in (source, MetadataSource(imds.endpoint, hurry=hurry)):
        for item in ("instance-type", "instance-id", "placement/region"):
            with pytest.raises(SourceTimeout, match=r"IMDS at .* (did not answer within 0\.25 s|has not answered yet)"):
                each.read(item)
    assert time.monotonic() - began < limit_s(3.0)
    assert imds.requests == ["PUT /latest/api/token"]
    imds.delay_s = 0.0
    assert not source.answers()
    assert (hurry.end(), hurry.end()) == (True, False)
    assert source.answers()
    assert source.read("instance-type") == "p5.48xlarge"


def test_a_hurry_reads_what_is_answered(imds: Imds) -> None:
    """As without one: an item, and that there is none."""
    until = time.monotonic() + limit_s(5)
    found, source = None, MetadataSource(imds.endpoint)
    while found is None:
        source = MetadataSource(imds.endpoint, hurry=FastStart(is_on=True))
        try:
            found = source.read("instance-type"), source.read("no/such/item")
        except SourceTimeout:  # a busy machine answers later than in a quarter of a second
            assert time.monotonic() < until
    assert (found, source.hurry.end()) == (("p5.48xlarge", None), False)


def test_an_item_that_is_late_again_is_awaited_again(imds: Imds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start that follows an answer meets a slow service: it is asked on, twice as rarely after each such start."""
    monkeypatch.setenv("_HEALTHD_METADATA_RESTARTS", "2")
    source, imds.delay_s = MetadataSource(imds.endpoint, hurry=begun()), 2.0
    with pytest.raises(SourceTimeout, match="did not answer within 1 s"):
        source.read("placement/region")
    late = LateMetadata(source)
    assert (late.is_awaited, late.first_s, late.again_s) == (True, 40.0, 40.0)
    late.wait(1000.0)  # it had its second
    imds.delay_s = 0.0
    assert late.answers()
    assert begun() == FastStart(restarts=3)


def test_what_is_told_in_its_second_is_not_asked_again(imds: Imds) -> None:
    """A start that follows an answer is the last one where each item is told."""
    source = MetadataSource(imds.endpoint, hurry=FastStart(restarts=1))
    assert source.read("instance-type") == "p5.48xlarge"
    assert not LateMetadata(source).is_awaited


@contextlib.contextmanager
def dripping(part: str) -> Iterator[str]:
    """An endpoint that sends its answer a byte each 50 ms: the head of it, or what comes after."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                client.recv(4096)
                client.sendall(head if part == "body" else b"")
                for byte in (head if part == "head" else b"") + b"A" * 60_000:
                    client.sendall(bytes([byte]))
                    time.sleep(0.05)

        speaker = threading.Thread(target=speak)
        speaker.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        speaker.join()


def test_nobody_there_is_unreadable_with_the_next_step() -> None:
    """A refused connection names the endpoint and the setting."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SourceUnreadable, match=rf"{endpoint}: .*; check hop limit and \[sources\] imds_endpoint"):
            read_metadata(endpoint, "instance-type")


def test_somebody_else_there_is_unreadable() -> None:
    """A port that speaks no HTTP is no metadata service."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                client.sendall(b"\x00\x01SSH-2.0\r\n")

        speaker = threading.Thread(target=speak)
        speaker.start()
        with pytest.raises(SourceUnreadable, match="IMDS at"):
            read_metadata(f"http://127.0.0.1:{listener.getsockname()[1]}", "instance-type")
        speaker.join()


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "169.254.169.254",
        "https://127.0.0.1",
        "http://",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:x",
        "http://[::1",
    ],
)
def test_a_wrong_endpoint_is_unreadable_not_a_crash(endpoint: str) -> None:
    """A mistake in the setting is said with the setting's name."""
    with pytest.raises(SourceUnreadable, match=r"check \[sources\] imds_endpoint"):
        read_metadata(endpoint, "instance-type")


# ---------------------------------------------------------------------------------------------------------------------
# the instance


def found(sys: Mapping[str, Entry], configured: str = "", endpoint: str = "") -> Identity:
    tree = FakeTree(sys)
    return find_identity(tree, MetadataSource(metadata_endpoint(tree, endpoint)), configured_type=configured)


def test_the_firmware_tells_on_nitro(imds: Imds) -> None:
    """DMI has both; nobody is asked over the network."""
    identity = found(NITRO, endpoint=imds.endpoint)
    assert identity == Identity(instance_type="p5.48xlarge", instance_id="i-0123456789abcdef0")
    assert imds.requests == []


def test_what_the_firmware_lacks_the_service_tells(imds: Imds) -> None:
    """On EC2 with an asset tag that is no instance id only the id is asked for."""
    imds.items["instance-id"] = "i-0fedcba9876543210"
    identity = found({**NITRO, f"{DMI}/board_asset_tag": "Not Specified"}, endpoint=imds.endpoint)
    assert identity == Identity(instance_type="p5.48xlarge", instance_id="i-0fedcba9876543210")
    assert [line for line in imds.requests if "instance-type" in line] == []


def test_an_endpoint_is_asked_where_there_is_no_firmware(imds: Imds) -> None:
    """In a container without DMI a set endpoint tells both; HyperPod's ``ml.`` is stripped."""
    imds.items["instance-type"] = "ml.p5.48xlarge"
    assert found({}, endpoint=imds.endpoint) == Identity(instance_type="p5.48xlarge", instance_id="i-0123456789abcdef0")


def test_configuration_wins(imds: Imds) -> None:
    """What the operator says is the type is the type."""
    assert found(NITRO, configured="ml.p5en.48xlarge").instance_type == "p5en.48xlarge"


def test_elsewhere_nobody_is_asked() -> None:
    """Another vendor's machine, or none known, without an endpoint: nothing is found, and that is no problem."""
    assert found({f"{DMI}/sys_vendor": "Dell Inc.", f"{DMI}/product_name": "PowerEdge"}) == Identity()
    assert found({"": SourceUnreadable("/sys: permission denied")}) == Identity()


def test_a_silent_service_is_a_problem_and_no_crash(imds: Imds) -> None:
    """What was found before stays, and the problem says what did not answer."""
    imds.token_status = 500
    identity = found({f"{DMI}/sys_vendor": "Amazon EC2", f"{DMI}/product_name": "p5.48xlarge"}, endpoint=imds.endpoint)
    assert (identity.instance_type, identity.instance_id) == ("p5.48xlarge", "")
    assert identity.problem == "IMDS answered 500 to PUT /latest/api/token; expected 200"


@pytest.mark.parametrize("word", ["true", "TRUE", "True"])
def test_the_service_can_be_forbidden(imds: Imds, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """AWS_EC2_METADATA_DISABLED, the variable of AWS's own tools, is honoured."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", word)
    assert found({}, endpoint=imds.endpoint) == Identity()
    assert imds.requests == []


# ---------------------------------------------------------------------------------------------------------------------
# the boot


def test_the_boot_is_read_from_proc() -> None:
    """The kernel's id, and the start in whole seconds as aware UTC."""
    proc = FakeTree({"sys/kernel/random/boot_id": "b007\n", "stat": "cpu 1 2\nbtime 1764000000\nprocesses 7\n"})
    assert boot_id(proc) == "b007"
    assert boot_time(proc) == datetime.fromtimestamp(1764000000, UTC)


@pytest.mark.parametrize(
    "stat", ["", "cpu 1 2", "btime", "btime ", "btime soon", "btime -1", "xbtime 5", "btime " + "9" * 20]
)
def test_a_stat_without_a_start_is_unreadable(stat: str) -> None:
    """A torn or foreign /proc/stat says what is missing, and is never a crash."""
    with pytest.raises(SourceUnreadable, match="/proc/stat has no line like `btime 1764000000`"):
        boot_time(FakeTree({"stat": stat}))


def test_a_hidden_proc_is_a_source_error() -> None:
    """Both questions pass on why /proc did not answer."""
    for question in (boot_id, boot_time):
        with pytest.raises(SourceError):
            question(FakeTree())


def test_a_node_is_called_what_slurm_calls_it() -> None:
    """A hook is told the name; elsewhere it is the host's first label."""
    assert node_name({"SLURMD_NODENAME": "gpu-7.cluster"}) == "gpu-7.cluster"
    assert node_name({}) == node_name({"SLURMD_NODENAME": ""}) == socket.gethostname().partition(".")[0]


def test_a_missing_item_is_no_event(imds: Imds) -> None:
    """404 is None, an item is its text; a service that has no token to give is unreadable, not empty."""
    source = MetadataSource(imds.endpoint)
    assert source.read("spot/instance-action") is None
    assert source.read("instance-id") == "i-0123456789abcdef0"
    imds.token_status = 404
    with pytest.raises(SourceUnreadable, match="where every IMDSv2 has one"):
        MetadataSource(imds.endpoint).read("instance-id")


def test_where_there_is_no_service_nothing_is_sent(imds: Imds) -> None:
    """Off EC2, and where asking is disabled, there is no endpoint, and every item is missing."""
    with pytest.raises(SourceMissing, match="not EC2"):
        MetadataSource("").read("instance-id")
    assert imds.requests == []


@pytest.mark.parametrize(
    ("sys_root", "endpoint"),
    [
        ("/sys", "http://169.254.169.254"),
        ("/sys/", "http://169.254.169.254"),
        ("/tmp/machine/sys", ""),
        ("/host/sys", ""),
    ],
)
def test_another_machines_firmware_sends_nothing_from_here(
    monkeypatch: pytest.MonkeyPatch, sys_root: str, endpoint: str
) -> None:
    """A simulated p5's tables say Amazon EC2, and the machine that would answer is the real one below."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    tree = FakeTree(NITRO)
    assert metadata_endpoint(tree, "", sys_root=sys_root) == endpoint
    assert metadata_endpoint(tree, "http://127.0.0.1:9", sys_root=sys_root) == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("tree", "configured", "disabled", "endpoint"),
    [
        (NITRO, "", "false", "http://169.254.169.254"),
        (NITRO, "http://127.0.0.1:9", "false", "http://127.0.0.1:9"),
        ({}, "http://127.0.0.1:9", "false", "http://127.0.0.1:9"),
        ({}, "", "false", ""),
        (NITRO, "http://127.0.0.1:9", "true", ""),
    ],
)
def test_where_the_service_may_be_asked(
    monkeypatch: pytest.MonkeyPatch, tree: Mapping[str, Entry], configured: str, disabled: str, endpoint: str
) -> None:
    """On EC2 by its firmware, or where someone said so; nowhere when it is disabled."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", disabled)
    assert metadata_endpoint(FakeTree(tree), configured) == endpoint
