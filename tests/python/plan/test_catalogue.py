"""The catalogue of machines and parts: every value has a source, and names are found."""

import json

import pytest
from memtide.errors import InvalidArgument
from memtide_plan import calibration, catalogue

DOCUMENTS = json.loads(catalogue.PATH.read_text())
BASES = {"specification", "measured", "list", "estimate"}


def values(document):
    """Every {"value", "source", "basis"} of a file, with its key."""
    for key, entry in document.items():
        if isinstance(entry, dict) and "value" in entry:
            yield key, entry
        elif isinstance(entry, dict):
            yield from values(entry)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["name"])
def test_every_value_says_where_it_is_from(document):
    found = dict(values(document))
    assert found
    for key, entry in found.items():
        assert set(entry) == {"value", "source", "basis"}, key
        assert entry["value"] > 0, key
        assert entry["source"], key
        assert entry["basis"] in BASES, key
    if "price" in document:
        assert document["price"]["basis"] in ("list", "estimate")
    assert not [key for key, value in document.items() if isinstance(value, float)]


def test_every_machine_of_the_catalogue_is_whole():
    for name in catalogue.named("machine"):
        machine = catalogue.machine(name)
        assert machine.device.memory_bytes > 10e9
        assert machine.to_device_bytes_per_s > 1e9
        assert machine.both_ways_bytes_per_s <= (
            machine.to_device_bytes_per_s + machine.from_device_bytes_per_s
        )
        assert 0 < machine.uncertainty < 1


def test_machines_that_are_listed_cover_every_gpu_and_some_have_prices():
    listed = catalogue.machines()
    assert {machine.device.name for machine in listed} == set(catalogue.named("gpu"))
    assert sum(machine.price is not None for machine in listed) >= 8
    names = [machine.name for machine in listed]
    assert "dataflow-h100" not in names
    assert names == sorted(names)


def test_a_card_s_values_are_those_of_its_sheet():
    card = catalogue.device("rtx4090")
    assert card.flop_per_s["bfloat16"] == 165.2e12
    assert card.memory_bytes_per_s == 1008e9
    assert 23 * 2**30 < card.memory_bytes < 24 * 2**30
    assert card.reached_flop == calibration.constant("reached_flop.geforce")
    assert card.pool_bytes is None


@pytest.mark.parametrize("name", ["RTX 4090", "rtx-4090", "4090", "NVIDIA GeForce RTX 4090"])
def test_a_card_is_found_as_people_write_it(name):
    assert catalogue.device(name).name == "rtx4090"


def test_an_unknown_card_names_the_nearest():
    with pytest.raises(InvalidArgument, match=r"no GPU 'rtx 4080'.*is it .*rtx4090"):
        catalogue.device("rtx 4080")


def test_an_unknown_card_without_a_near_one_names_all():
    with pytest.raises(
        InvalidArgument, match=r"no GPU 'zz' in the catalogue: it has a100-40, a100-80, .*v100-32"
    ):
        catalogue.device("zz")


def test_a_drive_is_no_machine():
    with pytest.raises(InvalidArgument, match="no machine '990-pro'"):
        catalogue.machine("990-pro")


def test_links_are_a_share_of_their_specification_unless_they_were_measured():
    share = calibration.constant("reached_link")
    assert catalogue.machine("desktop-4090").to_device_bytes_per_s == pytest.approx(
        31.508e9 * share
    )
    measured = catalogue.machine("dataflow-h100")
    assert (measured.to_device_bytes_per_s, measured.from_device_bytes_per_s) == (54.6e9, 53.6e9)
    assert measured.both_ways_bytes_per_s == 103.2e9
    sheets = catalogue.machine("dataflow-h100", rates="sheets")
    assert sheets.to_device_bytes_per_s == pytest.approx(63.015e9 * share)


def test_drives_add_up():
    one, all_twelve = catalogue.drives("p5510"), catalogue.machine("lohan-4090").drive
    assert all_twelve.read_bytes_per_s == pytest.approx(12 * one.read_bytes_per_s)
    assert all_twelve.endurance_bytes == 12 * one.endurance_bytes
    assert catalogue.drives_of("lohan-4090", count=1) == one


@pytest.mark.parametrize("count", [0, 13])
def test_more_drives_than_a_machine_has_are_refused(count):
    with pytest.raises(InvalidArgument, match=f"has 12 drives, and {count} are asked for"):
        catalogue.drives_of("lohan-4090", count=count)


def test_around_a_card_is_what_usually_is():
    desktop, server = catalogue.around("rtx3090"), catalogue.around("l40s")
    assert desktop.device.name == desktop.name == "rtx3090"
    assert desktop.devices == 1
    assert desktop.drive is None
    assert desktop.price is None
    assert desktop.host_memory_bytes < server.host_memory_bytes
    assert catalogue.around("h100").to_device_bytes_per_s == pytest.approx(
        2 * server.to_device_bytes_per_s, rel=0.01
    )


def test_a_step_on_the_host_has_one_sockets_memory_and_with_two_devices_the_link_between():
    share = calibration.constant("reached_host_memory")
    assert catalogue.machine("lohan-4090").host_memory_bytes_per_s == pytest.approx(
        375.424e9 / 2 * share
    )
    across = share * calibration.constant("reached_across_sockets")
    for name in ("lohan-2x4090", "lohan-4x4090"):
        assert catalogue.machine(name).host_memory_bytes_per_s == pytest.approx(
            375.424e9 / 2 * across
        )
    # One socket has all channels.
    assert catalogue.around("rtx4090").host_memory_bytes_per_s == pytest.approx(89.6e9 * share)


def test_only_several_devices_have_a_rate_between_them():
    assert catalogue.machine("server-h100").between_devices_bytes_per_s is None
    assert catalogue.machine("server-8xh100").between_devices_bytes_per_s > 300e9
    assert catalogue.machine("lohan-4x4090").between_devices_bytes_per_s is None


def test_a_constant_that_is_tried_is_back_afterwards():
    before = calibration.constant("reached_link")
    with calibration.tried({"reached_link": 0.5}):
        assert catalogue.around("rtx4090").to_device_bytes_per_s == pytest.approx(31.508e9 / 2)
    assert calibration.constant("reached_link") == before


def test_every_constant_says_its_unit_and_where_it_is_from():
    for name, entry in calibration.document().items():
        assert entry["unit"], name
        assert entry["source"], name
        assert entry["value"] > 0, name
