# Converts the events of a removal to a receipt (receipt.py documents the format).
# Input: the events; $earlier: the receipt of an earlier run or null; $plan; $now.
def items($list): [.[] | select(.list == $list) | .item];
def deduplicated: reduce .[] as $one ([]; if index([$one]) then . else . + [$one] end);

items("remains") as $remains
| ($remains | map(.name)) as $left
| (($earlier.found // []) + items("found") | deduplicated) as $found
| {
    version: 1,
    writtenAt: $now,
    writtenBy: "bootbridge_cleanup",
    plan: $plan,
    clean: ($remains == []),
    found: $found,
    removed: ([$found[] | select(.name as $name | $left | index([$name]) == null)]),
    remains: $remains,
    warnings: items("warnings")
  }
