"""The console in a real browser, with a real server and a real engine behind it."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from headrace.server.settings import token_hash
from tests.console.shop_at_work import ShopAtWork, shop_at_work
from tests.support.browser import chromium
from tests.support.patience import patience
from tests.support.shop import await_that

pytestmark = [pytest.mark.ci, pytest.mark.process, pytest.mark.slow]

AXE = Path(__file__).parent / "axe" / "axe.min.js"

VIEWS = (
    *("flow", "pipelines", "pipelines/orders", "pipelines/orders/tables"),
    *("pipelines/orders/letters", "sources", "tables", "tables/orders/orders"),
    *("letters", "events", "configuration"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        expect.set_options(timeout=1_000 * patience())
        yield found


@pytest.fixture(scope="module")
def engine_at_work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopAtWork]:
    with shop_at_work(tmp_path_factory.mktemp("shop")) as found:
        yield found


@pytest.fixture
def shop(engine_at_work: ShopAtWork) -> Iterator[ShopAtWork]:
    """The shop, with the server that it had before."""
    server = engine_at_work.server
    yield engine_at_work
    if engine_at_work.server is not server:
        engine_at_work.serve()


@contextmanager
def opened(
    browser: Browser, url: str, *, width: int = 1280, expected: str = "", **options: Any
) -> Iterator[Page]:
    """A page in a session of its own; at the end, the console must have said nothing wrong."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, reduced_motion="reduce", **options
    )
    context.set_default_timeout(1_000 * patience())
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda message: (
            wrong.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    page.goto(url)
    yield page
    context.close()
    # What breaks the policy of the page is such a message, too.
    assert [each for each in wrong if not (expected and re.search(expected, each))] == []


def go(page: Page, view: str) -> None:
    """Go to a view, and wait until it shows what it has."""
    page.evaluate("view => { location.hash = `#/${view}`; }", view)
    expect(page.locator(f"main[data-view='{view.partition('/')[0]}']")).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)


def flaws(page: Page) -> list[str]:
    """Return what axe finds serious or critical on the page, in light and in dark."""
    found = []
    # Not by a script tag: the policy of the page refuses it, as it should.
    page.evaluate(f"globalThis.axe || (() => {{ {AXE.read_text()} }})()")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        result = page.evaluate("axe.run({ resultTypes: ['violations'] })")
        found += [
            f"{page.url}, {theme}: {each['id']}: {node['html'][:200]}: "
            f"{(node['any'] or node['all'] or node['none'])[0]['message'][:200]}"
            for each in result["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
    return found


def test_a_row_that_fails_is_found_edited_and_replayed(browser: Browser, shop: ShopAtWork) -> None:
    with opened(browser, shop.url) as page:
        lane = page.get_by_role("region", name="Flow of source shop")
        expect(lane.locator("article", has_text="paid-orders")).to_contain_text("streaming")

        # Paused by a click, and resumed by another.
        lane.get_by_role("link", name="orders", exact=True).click()
        page.get_by_role("button", name="Pause").click()
        expect(page.locator(".subject .pill")).to_have_text("paused")
        assert shop.engine.pipeline_info("orders").state == "paused"
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".subject .pill")).to_have_text("streaming")

        # A row that cannot be computed.
        shop.execute("shop", "update orders set amount = -1, number = '<b>7</b>' where id = 7")
        expect(page.get_by_role("tab", name="Dead letters")).to_contain_text("1")
        page.get_by_role("tab", name="Dead letters").click()
        letter = page.get_by_role("region", name="Dead letter of orders")
        changed = letter.locator("tr.differs")
        expect(changed).to_have_count(2)
        expect(changed.filter(has_text="amount")).to_contain_text("changed")
        expect(letter).to_contain_text("<b>7</b>")

        # As it is, it would fail again; with another amount it would not, and then it is applied.
        letter.get_by_role("button", name="Dry run").click()
        expect(letter).to_contain_text("would fail again")
        letter.get_by_role("button", name="Edit values").click()
        letter.get_by_label("New value of amount").fill("12.5")
        letter.get_by_role("button", name="Dry run").click()
        expect(letter).to_contain_text("would be applied")
        assert len(shop.engine.dead_letters("orders")) == 1
        letter.get_by_role("button", name="Apply edited").click()
        expect(page.get_by_text("No dead letters", exact=True)).to_be_visible()

        # The row is there, and a change of it is seen as it comes.
        go(page, "tables/orders/orders")
        page.get_by_label("Rows", exact=True).select_option("key")
        page.get_by_label("id", exact=True).fill("7")
        page.get_by_role("button", name="Find").click()
        row = page.locator("table.data tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("12.5")
        expect(row).to_contain_text("<b>7</b>")
        expect(page.locator(".feed .pill")).to_have_text(re.compile("live|listening"))
        shop.execute("shop", "update orders set status = 'returned', amount = 13 where id = 7")
        expect(page.locator(".feed li").first).to_contain_text("returned")
        expect(row).to_contain_text("returned")


def test_rows_are_found_by_lookup_and_by_index_and_paged(
    browser: Browser, shop: ShopAtWork
) -> None:
    with opened(browser, f"{shop.url}/#/tables/orders/orders") as page:
        rows = page.locator("table.data tbody tr")
        expect(rows.first).to_contain_text("W-10001")
        shop.execute("shop", *(f"insert into orders (id) values ({n})" for n in range(900, 920)))
        expect(page.get_by_text("60 rows")).to_be_visible()
        expect(rows).to_have_count(50)
        page.get_by_role("button", name="Next").click()
        expect(rows).to_have_count(10)
        expect(rows.last.locator(".null").first).to_have_text("null")
        shop.execute("shop", *(f"insert into orders (id) values ({n})" for n in range(1000, 1460)))
        # A table that grew while it was shown: read anew, it comes in pieces.
        assert await_that(shop.engine, lambda: shop.engine.pipeline_info("orders").rows == 520)
        page.reload()
        expect(page.get_by_text("500 of 520 rows loaded")).to_be_visible()
        expect(rows.first).to_contain_text("W-10001")
        for _ in range(10):
            page.get_by_role("button", name="Next").click()
        expect(page.get_by_text("520 rows")).to_be_visible()
        expect(rows).to_have_count(20)
        shop.execute("shop", "delete from orders where id >= 900")
        page.get_by_label("Rows", exact=True).select_option("by_customer")
        page.get_by_label("customer_id").fill("3")
        page.get_by_role("button", name="Find").click()
        expect(rows.first.locator("td").nth(2)).to_have_text("3")
        page.get_by_label("Rows", exact=True).select_option("lookup")
        page.get_by_label("number", exact=True).fill("W-10002")
        page.get_by_role("button", name="Find").click()
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("W-10002")
        page.get_by_label("number", exact=True).fill("nobody's")
        page.get_by_role("button", name="Find").click()
        expect(page.get_by_text("No row has this value now.")).to_be_visible()


def test_what_destroys_asks_for_the_name(browser: Browser, shop: ShopAtWork) -> None:
    shop.execute("shop", "update orders set amount = -1 where id = 9")
    assert await_that(shop.engine, lambda: len(shop.engine.dead_letters("orders")) == 1)
    with opened(browser, f"{shop.url}/#/letters/orders") as page:
        page.get_by_role("region", name="Dead letter of orders").get_by_role(
            "button", name="Purge"
        ).click()
        dialog = page.get_by_role("dialog", name="Purge dead letters?")
        purge = dialog.get_by_role("button", name="Purge for good")
        expect(purge).to_be_disabled()
        dialog.get_by_label("Type orders to confirm").fill("orders")
        expect(purge).to_be_enabled()
        dialog.get_by_role("button", name="Cancel").click()
        assert len(shop.engine.dead_letters("orders")) == 1
        page.get_by_role("region", name="Dead letter of orders").get_by_role(
            "button", name="Purge"
        ).click()
        dialog.get_by_label("Type orders to confirm").fill("orders")
        purge.click()
        expect(page.get_by_text("No dead letters", exact=True)).to_be_visible()
    assert shop.engine.dead_letters("orders") == ()


def test_a_pipeline_is_paused_with_the_keyboard_alone(browser: Browser, shop: ShopAtWork) -> None:
    def focused(page: Page) -> str:
        return str(page.evaluate("document.activeElement.textContent.trim()"))

    with opened(browser, shop.url) as page:
        expect(page.locator(".lane").first).to_be_visible()
        page.keyboard.press("Tab")
        assert focused(page) == "Skip to the content"
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("p")
        expect(page.get_by_role("heading", name="Pipelines", level=1)).to_be_focused()
        while focused(page) != "customers":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="customers", level=1)).to_be_focused()
        while focused(page) != "Overview":
            page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name="Tables")).to_be_focused()
        expect(page.get_by_role("tab", name="Tables")).to_have_attribute("aria-selected", "true")
        while focused(page) != "Pause":
            page.keyboard.press("Shift+Tab")
        shown = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert shown == "solid"
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Resume")).to_be_focused()
        expect(page.locator(".subject .pill")).to_have_text("paused")
        page.keyboard.press("p")
        expect(page.locator(".subject .pill")).to_have_text("streaming")


def test_every_view_is_free_of_what_axe_calls_serious_and_fits_a_telephone(
    browser: Browser, shop: ShopAtWork
) -> None:
    shop.execute("shop", "update orders set amount = -1 where id = 8")
    assert await_that(shop.engine, lambda: len(shop.engine.dead_letters("orders")) == 1)
    found: list[str] = []
    with opened(browser, shop.url, width=360) as page:
        for view in VIEWS:
            go(page, view)
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > 360:
                found.append(f"{view} is {width} wide on a page of 360")
            found += flaws(page)
        go(page, "letters")
        page.get_by_role("button", name="Edit values").click()
        found += flaws(page)
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Purge").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        found += flaws(page)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Keyboard shortcuts").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        found += flaws(page)
    shop.engine.purge_dead_letters("orders")
    assert found == [], json.dumps(found, indent=1)


def test_a_caller_signs_in_and_may_do_what_the_role_allows(
    browser: Browser, shop: ShopAtWork
) -> None:
    token = secrets.token_hex(20)
    shop.serve(tokens={"ops": {"hash": token_hash(token), "role": "read"}})
    with opened(browser, shop.url, expected="401|Unauthorized") as page:
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.get_by_label("Token").fill("not-a-token-that-anybody-was-given")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        assert flaws(page) == []
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        expect(page.get_by_text("ops · read")).to_be_visible()
        assert page.evaluate("document.cookie") == ""
        go(page, "pipelines/orders")
        # It is not disabled for the keyboard, or nobody would learn why.
        page.get_by_role("button", name="Pause").click(force=True)
        expect(page.get_by_text("Needs the role operate; yours is read.")).to_be_visible()
        assert shop.engine.pipeline_info("orders").state != "paused"
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_an_engine_that_is_away_is_said_and_found_again(browser: Browser, shop: ShopAtWork) -> None:
    with opened(browser, shop.url, expected="ERR_|Failed to load") as page:
        expect(page.locator(".lane").first).to_be_visible()
        port = int(shop.url.rpartition(":")[2])
        shop.server.close()
        banner = page.get_by_role("alert")
        expect(banner).to_contain_text("The engine does not answer.")
        expect(page.locator(".lane").first).to_be_visible()
        shop.serve(http_port=port)
        banner.get_by_role("button", name="Try now").click()
        expect(banner).to_have_count(0)
        expect(page.locator(".engine")).to_contain_text("ready")


def test_a_theme_is_chosen_and_kept(browser: Browser, shop: ShopAtWork) -> None:
    def dark(page: Page) -> bool:
        found = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", str(found))[:3])) < 120

    with opened(browser, shop.url, color_scheme="dark") as page:
        button = page.get_by_role("button", name="Theme")
        expect(button).to_have_accessible_name(re.compile("system"))
        assert dark(page)
        button.click()
        expect(button).to_have_accessible_name(re.compile("light"))
        assert not dark(page)
        page.reload()
        expect(button).to_have_accessible_name(re.compile("light"))
        assert not dark(page)
