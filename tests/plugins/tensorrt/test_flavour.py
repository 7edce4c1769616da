"""Which devices an engine may be built for, and which types they take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infc.compiler.errors import InfcError, UnsupportedError, UsageError
from infc.plugins.tensorrt import flavour
from infc.plugins.tensorrt.flavour import ENTERPRISE, LEAST_SM, RTX, check_type, choose_sms


@given(st.lists(st.sampled_from(RTX.sms), min_size=1))
def test_rtx_takes_any_set_of_its_devices_once_each_and_in_order(wanted: list[int]) -> None:
    assert choose_sms(RTX, wanted, None) == tuple(sorted(set(wanted)))


def test_rtx_without_devices_takes_this_machines_or_asks() -> None:
    assert choose_sms(RTX, (), 89) == (89,)
    with pytest.raises(UsageError, match="there is none here") as caught:
        choose_sms(RTX, (), None)
    assert caught.value.code == "INFC-E0731"
    assert "--sm" in caught.value.hint


@pytest.mark.parametrize(("wanted", "machine"), [((90,), None), ((86, 90), None), ((), 90)])
def test_a_device_that_rtx_does_not_know(wanted: tuple[int, ...], machine: int | None) -> None:
    with pytest.raises(UsageError, match="does not build for SM 90") as caught:
        choose_sms(RTX, wanted, machine)
    assert caught.value.code == "INFC-E0730"
    assert "86, 89" in caught.value.hint


def test_enterprise_takes_this_machines_device_only() -> None:
    assert choose_sms(ENTERPRISE, (), 90) == choose_sms(ENTERPRISE, (90,), 90) == (90,)
    for wanted, machine in (((), None), ((90,), None), ((89,), 90), ((89, 90), 90)):
        with pytest.raises(UnsupportedError, match="this machine's GPU only") as caught:
            choose_sms(ENTERPRISE, wanted, machine)
        assert caught.value.code == "INFC-E0732"


@pytest.mark.parametrize("kind", sorted(LEAST_SM))
def test_a_type_needs_its_device(kind: str) -> None:
    least = LEAST_SM[kind]
    check_type(kind, [sm for sm in RTX.sms if sm >= least], "here")
    with pytest.raises(InfcError, match=f"{kind} needs SM {least} or newer, which SM {least - 1} is not") as caught:
        check_type(kind, (least - 1, least), "here")
    assert caught.value.code == "INFC-E0733"


def test_without_a_driver_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(flavour.ctypes, "CDLL", missing)
    assert flavour.machine_sm() is None
