"""The dashboard in a real browser: the budget and the rate that follows, a party that stops, alarms and the shadow."""

from __future__ import annotations

import os
import re
import signal

import httpx
import pytest
from fake_federation import federation
from in_a_thread import Served
from made_once import made_once
from playwright.sync_api import expect, sync_playwright
from typer.testing import CliRunner
from up_helpers import Up, tiny_run
from waiting import wait_until

from gainroute.cli import app
from gainroute.federation.coordinator.settings import ControllerSettings, DriftSettings

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
PATIENCE = 90_000  # a limit, not a wait: a busy machine takes its time
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_once(tmp_path_factory, "tiny", tiny_run) / "run"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield found
        found.close()


@pytest.fixture(scope="module")
def served(run, tmp_path_factory):
    with Up(run, tmp_path_factory.mktemp("up"), "--budget", "0.2") as up:
        send(up, 120)
        yield up


@pytest.fixture
def opened(browser):
    """Open a page; at the end nothing may have gone wrong in it, and nobody else may have been asked."""
    begun, wrong = [], []

    def begin(url, **how):
        context = browser.new_context(**how)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        page.on("request", lambda asked: asked.url.startswith(url.partition("#")[0]) or wrong.append(asked.url))
        page.goto(url)
        expect(page.locator("#state")).to_have_text("✓ answering")
        begun.append(context)
        return page

    yield begin
    for context in begun:
        context.close()
    assert not wrong


def send(up, count):
    """Ask for samples, eight at a time, and tell the truth of none."""
    ids = up.told["example_ids"]
    for start in range(0, count, 8):
        answer = up.ask([ids[i % len(ids)] for i in range(start, min(start + 8, count))])
        assert answer.status_code == 200, answer.text


def status(up):
    return httpx.get(f"{up.url}/api/status", timeout=60).json()


def shows(locator, share, tolerance=6e-4):
    """Wait until a percentage is on the page."""

    def there():
        text = locator.inner_text().replace("%", "").replace("−", "-").strip()
        return text.replace(".", "").isdigit() and float(text) / 100 == pytest.approx(share, abs=tolerance)

    wait_until(there, PATIENCE / 1000)


def look_again(page, times):
    """Wait until the page has asked for what is live, and been answered, so many times more."""
    for _ in range(times):
        with page.expect_response(lambda reply: reply.url.endswith("/api/status")):
            pass


def move(page, value):
    """Move the slider as the mouse does."""
    page.locator("#budget").evaluate(
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); "
        "node.dispatchEvent(new Event('change')); }",
        str(value),
    )


def test_everything_is_shown(served, opened):
    found = httpx.get(f"{served.url}/api/decisions?limit=40").json()["decisions"]
    truths = [{"decision_id": d["decision_id"], "label": d["class"]} for d in found]
    assert httpx.post(f"{served.url}/feedback", json={"feedback": truths}).status_code == 200
    page = opened(served.dashboard)
    now = status(served)
    expect(page.locator("#budget-value")).to_have_text("20 %")
    expect(page.locator("#operating-point")).to_be_visible()
    rate = float(page.locator("#operating-point").get_attribute("data-rate"))
    assert rate == pytest.approx(now["operating_point"]["expected_rate"])
    shows(page.locator("#rate"), now["escalation"]["last_1000"]["rate"])
    shows(page.locator("#saved"), now["bytes"]["saved_share"], 6e-3)
    expect(page.locator("#bytes-legend")).to_contain_text("Round 2")
    expect(page.locator("#latency tbody tr")).to_have_count(3)
    assert float(page.locator("#latency tbody td").first.inner_text()) > 0
    expect(page.locator("#accuracy")).to_have_text("100.0 %")
    expect(page.locator("#parties li[data-state=ok]")).to_have_count(2)
    expect(page.locator("#decisions tbody tr")).to_have_count(15)
    expect(page.locator("#parties-about")).to_contain_text(re.compile(r"Here, coordinator: certificate: \d+ days left"))


# Texts of charts beyond their panel, and texts that the budget's curve crosses.
MISPLACED = """() => {
    const shown = (t) => t.getAttribute("visibility") !== "hidden" && t.textContent;
    const texts = [...document.querySelectorAll("svg text")].filter(shown);
    const box = (node) => node.getBoundingClientRect();
    const beyond = (own, panel) => own.left < panel.left || own.right > panel.right;
    const within = (x, y, own) => x > own.left && x < own.right && y > own.top && y < own.bottom;
    const line = document.querySelector("#curve .line"), from = box(line.ownerSVGElement);
    const at = (i) => line.getPointAtLength((line.getTotalLength() * i) / 399);
    const spots = Array.from({ length: 400 }, (_, i) => at(i));
    const crossed = (t) => t.closest("#curve") && spots.some(({ x, y }) => within(x + from.left, y + from.top, box(t)));
    const outside = texts.filter((t) => beyond(box(t), box(t.closest(".panel"))));
    return [outside, texts.filter(crossed)].map((all) => all.map((t) => t.textContent));
}"""


def box(page, selector):
    return page.locator(selector).bounding_box()


def test_the_slider_is_aligned_with_the_axis_and_nothing_is_clipped_or_crossed(served, opened):
    for width in (1440, 1024, 390):
        page = opened(served.dashboard, viewport={"width": width, "height": 900})
        slider, line = box(page, "#budget"), box(page, "#curve .dash")
        thumb = slider["x"] + 9 + 0.2 * (slider["width"] - 18)
        assert thumb == pytest.approx(line["x"] + line["width"] / 2, abs=1.5)
        assert page.evaluate(MISPLACED) == [[], []]
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_controller_is_on_and_the_time_shown_can_be_chosen(served, opened):
    assert status(served)["controller"]["on"] is True
    page = opened(served.dashboard)
    expect(page.locator("#control")).to_be_visible()
    with page.expect_response(lambda reply: "/api/rate?seconds=86400" in reply.url):
        page.locator("#window").select_option("86400")


def test_few_samples_are_too_few_to_say(opened, tmp_path):
    fed = federation(tmp_path, 0.2).having(controller=ControllerSettings(), drift=DriftSettings(seconds=0.1))
    with Served(fed) as up:
        body = {"inputs": [{"name": "id", "shape": [1], "datatype": "BYTES", "data": ["s0"]}]}
        answer = httpx.post(f"{up.url}/v2/models/gainroute/infer", json=body, timeout=60).json()
        name = next(o for o in answer["outputs"] if o["name"] == "decision_id")["data"][0]
        told = {"decision_id": name, "label": "ant"}
        assert httpx.post(f"{up.url}/feedback", json=told, timeout=60).status_code == 200
        page = opened(up.dashboard)
        expect(page.locator("#rate-verdict")).to_have_text("too few to say: 1 of 20 samples")
        expect(page.locator("#accuracy-about")).to_have_text("too few to say: 1 of 20 labels")
        expect(page.locator("#control-about")).to_contain_text("too few samples (1) to say")
        expect(page.locator("#drift-list")).to_contain_text("too few to say")
        for card in ("#rate", "#accuracy"):
            expect(page.locator(card)).to_have_text("–")
        expect(page.locator("#advice")).to_contain_text("calibration samples")


def test_the_operating_point_and_the_live_rate_follow_the_budget(served, opened):
    page = opened(served.dashboard)
    slider = page.locator("#budget")
    before = float(page.locator("#operating-point").get_attribute("data-rate"))
    slider.focus()
    for key in ("End", *["ArrowLeft"] * 20):  # by the keyboard: 80 %
        page.keyboard.press(key)
    expect(page.locator("#budget-value")).to_have_text("80 %")
    expect(page.locator("#live-about")).to_contain_text("since the budget was changed")
    assert status(served)["operating_point"]["budget"] == 0.8
    point = page.locator("#operating-point")
    expect(point).to_have_attribute("data-rate", re.compile(r"0\.[6-8]"))
    assert float(point.get_attribute("data-rate")) > before + 0.3
    at = status(served)["escalation"]
    send(served, 240)
    to = status(served)["escalation"]
    rate = (to["escalated"] - at["escalated"]) / 240
    assert rate > before + 0.3
    expect(page.locator("#live-about")).to_contain_text("of 240 samples")
    shows(page.locator("#rate"), rate)
    assert float(page.locator("#live-mark").get_attribute("data-rate")) == pytest.approx(rate)

    # A page opened later does not mix in what was decided under the budget before.
    later = opened(served.dashboard)
    shows(later.locator("#rate"), rate)
    move(page, 20)
    expect(later.locator("#budget-value")).to_have_text("20 %")


def test_a_decision_is_explained_class_by_class_with_the_keyboard_alone(served, opened):
    page = opened(served.dashboard)
    first = page.locator("#decisions tbody button").first
    first.focus()
    page.keyboard.press("Enter")
    rows = page.locator("#why .bill tbody tr")
    expect(rows).to_have_count(3)
    assert sorted(re.sub(r" .*", "", name) for name in rows.locator("th").all_inner_texts()) == ["ant", "bee", "cat"]
    added = [float(row.locator("td").nth(4).inner_text().replace("−", "-")) for row in rows.all()]
    foot = page.locator("#why .bill tfoot tr").all()
    *corrections, total = [float(row.locator("td").nth(2).inner_text().replace("−", "-")) for row in foot]
    added += corrections
    assert sum(added) == pytest.approx(total, abs=0.21)
    expect(page.locator("#why .said li")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator("#why")).to_be_hidden()
    expect(first).to_be_focused()


def test_without_a_token_it_says_so_and_the_field_helps(served, opened):
    page = opened(served.url)
    token = served.told["admin_token"]
    expect(page.locator("#budget")).to_be_enabled()
    move(page, 40)
    expect(page.locator("#budget-says")).to_contain_text("was not changed")
    expect(page.locator("#token")).to_be_focused()
    assert status(served)["operating_point"]["budget"] == 0.2
    page.keyboard.insert_text(token)
    move(page, 40)
    expect(page.locator("#budget-says")).to_contain_text("Now:")
    expect(page.locator("#budget-value")).to_have_text("40 %")
    assert status(served)["operating_point"]["budget"] == 0.4
    assert page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    move(page, 20)
    expect(page.locator("#budget-says")).to_contain_text("would escalate")
    expect(page.locator("#budget-says")).to_contain_text("Now:")


def test_on_a_phone_and_in_the_dark(served, opened):
    page = opened(served.dashboard, **PHONE, color_scheme="dark")
    expect(page.locator("#decisions tbody tr")).to_have_count(15)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", shade))) < 60
    page.locator("#decisions tbody button").first.tap()
    expect(page.locator("#why .bill")).to_be_visible()
    box = page.locator("#why").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


def test_threshold_alarm_and_shadow_from_drift_to_a_new_router_and_back(opened, tmp_path):
    """The strong answers are spoiled: an alarm, a router refitted from the log, its shadow, the swap, the way back."""
    fed = federation(tmp_path, 0.2).having(
        controller=ControllerSettings(explore=0.05), drift=DriftSettings(window=240, seconds=0.1, protect=True)
    )
    with Served(fed) as up:
        page = opened(up.dashboard)
        page.on("dialog", lambda dialog: dialog.accept())
        line, alerts, foot = page.locator("#threshold-line"), page.locator("#alerts"), page.locator("#foot")

        def drawn():
            up.answer()
            return line.count() and int(line.get_attribute("data-points")) >= 3

        wait_until(drawn, PATIENCE / 1000)
        up.answer(4)
        expect(page.locator("#control-about")).to_contain_text("points from the budget")
        expect(page.locator("#drift-list")).to_contain_text("✓ as in calibration")
        # The same few samples again and again: a party may be said to have changed.
        expect(alerts.locator("p:not([data-key=alarm-parties])")).to_have_count(0)
        old = up.status()["version"]
        expect(foot).to_contain_text(old)

        up.spoil()

        def alarmed():
            up.answer()
            return alerts.locator("p[data-key=alarm-collaboration]").count()

        wait_until(alarmed, PATIENCE / 1000)
        expect(alerts).to_contain_text("Collaboration has begun to hurt")
        expect(alerts).to_contain_text("the strong route was right on")
        expect(alerts).to_contain_text("What to do:")
        expect(page.locator("#drift-list .bad").filter(has_text="evidence of harm was")).to_have_count(1)
        expect(page.locator("#drift-list")).to_contain_text("every escalation must gain more")
        expect(page.locator("#rate-verdict")).to_contain_text("held down")

        up.answer(3)
        log, out = fed.settings.log.path, tmp_path / "new.safetensors"
        refit = ["recalibrate", fed.artifacts["one"], "--log", log, "--out", out]
        done = CliRunner().invoke(app, [str(word) for word in refit])
        assert done.exit_code == 0, done.output
        page.locator("#shadow-path").fill("nowhere.safetensors")
        page.locator("#shadow-load").click()
        expect(page.locator("#shadow-says")).to_contain_text("Nothing was changed")
        page.locator("#shadow-path").fill("new.safetensors")
        page.locator("#shadow-load").click()
        expect(page.locator("#shadow-about")).to_contain_text(f"scores beside {old}")
        up.answer(2)
        expect(page.locator("#shadow-list")).to_contain_text("decided the same way")
        expect(page.locator("#shadow-list")).to_contain_text("Difference")
        new = up.status()["shadow"]["version"]
        assert up.status()["version"] == old != new

        page.locator("#shadow-swap").click()
        expect(foot).to_contain_text(new)
        expect(alerts.locator("p")).to_have_count(0)  # the new router has a monitor of its own
        expect(page.locator("#rollback")).to_contain_text(old)
        up.answer()
        page.locator("#rollback").click()
        expect(foot).to_contain_text(old)
        expect(alerts).to_contain_text("Collaboration has begun to hurt")

        phone = opened(up.dashboard, **PHONE, color_scheme="dark")
        expect(phone.locator("#alerts")).to_contain_text("Collaboration has begun to hurt")
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("#drift-reset").click()
        expect(alerts.locator("p")).to_have_count(0)
        assert up.status()["protection"] is None


def test_a_stopped_party_turns_red_and_a_stopped_coordinator_is_said(run, tmp_path, opened):
    with Up(run, tmp_path) as up:
        page = opened(up.dashboard)
        send(up, 16)
        good = page.locator("#parties li[data-party=left] .word").evaluate("n => getComputedStyle(n).color")
        os.kill(up.told["parties"][1]["pid"], signal.SIGKILL)
        right = page.locator("#parties li[data-party=right]")
        expect(right).to_have_attribute("data-state", "unavailable")
        expect(right.locator(".word")).to_have_text("not reachable")
        assert right.locator(".word").evaluate("n => getComputedStyle(n).color") != good
        expect(right.locator(".more")).to_contain_text("for ")
        expect(page.locator("#state")).to_have_text("✕ not answering")
        expect(page.locator("#alerts")).to_contain_text("Requests are refused now")
        expect(page.locator("#alerts")).to_contain_text("What to do: right: start it again")
        expect(page.locator("#parties li[data-party=left]")).to_have_attribute("data-state", "ok")
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(60) == 0
        expect(page.locator("#alerts")).to_contain_text("cannot be reached")
        expect(page.locator("#alerts")).to_contain_text("What to do: check that its process runs")
        expect(page.locator("#budget")).to_be_disabled()


def test_nothing_flickers_while_it_is_looked_at(served, opened):
    """Rows that stay are the same nodes, and unchanged parts are not written again."""
    page = opened(served.dashboard)
    expect(page.locator("#decisions tbody tr")).to_have_count(15)
    look_again(page, 2)
    page.evaluate(
        """() => {
            const lively = "#parties, footer, #live"; // times and distances, which do change
            const quiet = (m) => !(m.target.closest ? m.target : m.target.parentElement).closest(lively);
            window.writes = 0;
            new MutationObserver((all) => { window.writes += all.filter(quiet).length; })
                .observe(document.body, { childList: true, subtree: true, characterData: true, attributes: true });
        }"""
    )
    look_again(page, 3)
    assert page.evaluate("window.writes") == 0
