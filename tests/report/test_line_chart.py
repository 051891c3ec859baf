"""Line charts. Expected: the SVG specification, and arithmetic."""

from __future__ import annotations

from xml.etree import ElementTree

from worldswitch.report.line_chart import Line, Panel, blocks, svg


def test_blocks_reach_from_zero_to_the_largest() -> None:
    assert blocks([0, 1, 2, 7]) == "▁▂▃█"
    assert blocks([0, 0]) == "▁▁"
    assert blocks([]) == ""


def test_each_value_is_a_point_and_the_largest_the_highest() -> None:
    tree = ElementTree.fromstring(svg("t", [1, 2, 4], "h", [Panel("p", [Line("a", [0, 10, 5])])]))
    line = tree.find(".//{*}polyline")
    assert line is not None
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    lowest, highest, half = (y for _, y in points)
    assert highest < half < lowest
    assert half == (highest + lowest) / 2


def test_names_cannot_leave_their_place() -> None:
    text = svg("<script>", [1], "h", [Panel("</svg>", [Line("&", [1])])])
    assert "<script>" not in text
    assert text.count("</svg>") == 1
    ElementTree.fromstring(text)
