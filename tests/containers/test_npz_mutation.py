"""Every guard of the npy and npz readers and writers is one that some case needs: taken out, a test turns red."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from tests.containers import test_npy, test_npz, test_zips
from tests.mutation import Check, assert_needed, cases, guards, red

from weighbridge.containers.archive import zip as zips
from weighbridge.containers.numpy import npy, npz

pytestmark = pytest.mark.mutation


def checks() -> Iterator[Check]:
    for test in (
        test_npz.test_contradictions_are_refused,
        test_npz.test_names_that_could_lead_an_unpacker_astray_are_refused,
        test_zips.test_what_contradicts_itself_is_refused,
        test_npy.test_headers_get_numpys_verdict,
        test_npy.test_what_is_refused_and_why,
        test_npy.test_what_is_no_array_file,
    ):
        yield from cases(test)
    yield from (
        test_zips.test_a_name_that_readers_would_cut_is_refused,
        test_zips.test_a_small_member_is_small,
        test_npz.test_overlapping_members_are_refused,
        test_npz.test_refused,
        test_npz.test_big_endian_arrays,
        test_npz.test_object_arrays_are_refused,
        test_npy.test_one_array_a_file,
        test_npy.test_types_without_a_name,
    )


CHECKS = list(checks())


def test_without_faults_all_is_green() -> None:
    assert not any(map(red, CHECKS))


@pytest.mark.parametrize(("module", "guard"), guards(npy, npz, zips))
def test_a_guard_that_is_not_there(module: ModuleType, guard: str) -> None:
    assert_needed(module, guard, CHECKS)
