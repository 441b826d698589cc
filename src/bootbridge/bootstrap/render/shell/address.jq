# Selects the addresses that agents dial. Implements the rules of address.py for nodes without Python.
# Input: $links (ip -j addr show), $routes (IP version -> ip -j route get), $given (text), $networks, $families.
# Output: lines "address TEXT" (primary first), "warning TEXT" or "error TEXT".

def hex: ascii_downcase | explode | reduce .[] as $c (0; . * 16 + (if $c >= 97 then $c - 87 else $c - 48 end));

def bytes4:
  split(".")
  | if length == 4 and all(.[]; test("^(0|[1-9][0-9]{0,2})$")) then map(tonumber) else [256] end
  | if all(.[]; . < 256) then . else null end;

def group:
  if test("^[0-9a-fA-F]{1,4}$") then [hex]
  elif test("^[0-9.]+$") then bytes4 | if . == null then [null] else [.[0] * 256 + .[1], .[2] * 256 + .[3]] end
  else [null] end;

def groups: if . == "" then [] else split(":") | map(group) | add end;

def bytes6:
  split("::")
  | if length == 1 then .[0] | groups
    elif length == 2 then
      (.[0] | groups) as $head | (.[1] | groups) as $tail
      | $head + [range(8 - ($head | length) - ($tail | length)) | 0] + $tail
      | if ($head | length) + ($tail | length) < 8 then . else [null] end
    else [null] end
  | if length == 8 and all(.[]; . != null) then map((. / 256 | floor), . % 256) else null end;

# Converts an address to 4 or 16 bytes; null if the text is invalid.
def bytes: if contains(":") then bytes6 else bytes4 end;

def ip_version: if length == 4 then 4 else 6 end;

# Tests whether the bytes are inside a CIDR.
def inside($network):
  . as $bytes
  | ($network | split("/")) as $parts
  | ($parts[0] | bytes) as $base
  | ($parts[1] | tonumber) as $length
  | ($base | length) == ($bytes | length)
    and all(range($base | length);
      . as $at
      | ([[$length - 8 * $at, 0] | max, 8] | min) as $bits
      | pow(2; 8 - $bits) as $unit
      | ($base[$at] / $unit | floor) == ($bytes[$at] / $unit | floor));

def in_any($list): . as $bytes | any($list[]; . as $network | $bytes | inside($network));

def never_dialled:
  if in_any(["127.0.0.0/8", "::1/128"]) then "local to this machine"
  elif in_any(["169.254.0.0/16", "fe80::/10"]) then "link-local"
  elif in_any(["0.0.0.0/32", "::/128", "224.0.0.0/4", "ff00::/8"]) then "not assignable"
  else "" end;

def unusable($link):
  (.local | bytes | never_dialled) as $never
  | if .scope == "host" or $never == "local to this machine" then "local to this machine"
    elif .scope == "link" or $never == "link-local" then "link-local"
    elif ($link.flags | index("UP") == null or index("NO-CARRIER") != null) then "interface down"
    elif .tentative then "tentative"
    elif .dadfailed then "dadfailed"
    elif .deprecated then "deprecated"
    elif .temporary then "temporary"
    else "" end;

# A load balancer's address can move to another machine. DHCP also assigns /32 and /128, but marks them dynamic.
def looks_virtual: (.prefixlen == (if .family == "inet" then 32 else 128 end) and (.dynamic | not)) or (.secondary // false);

def seen:
  [ $links[] | . as $link | (.addr_info // [])[] | select(.local)
    | {
        text: .local,
        bytes: (.local | bytes),
        interface: $link.ifname,
        shown: "\(.local)/\(.prefixlen) on \($link.ifname)",
        unusable: unusable($link),
        virtual: looks_virtual,
        dhcpv6: (.family == "inet6" and .prefixlen == 128 and (.dynamic // false))
      } ];

def route($version):
  ($routes["\($version)"] // [])[0]
  | if . == null or .dev == null then null
    else {dev, source: (if .prefsrc then .prefsrc | bytes else null end)} end;

def keep(condition): map(select(condition)) as $kept | if ($kept | length) > 0 then $kept else . end;

def narrowed($version; $route):
  keep(.virtual | not)
  | if $route then keep(.bytes == $route.source) | keep(.interface == $route.dev) else . end
  | if (map(.interface) | unique | length) == 1 then keep(.dhcpv6) else . end
  | if (map(.text) | unique | length) == 1 then {address: .[0].text}
    else {error: "ambiguous IPv\($version) address: \(map(.shown) | join(", "))"} end;

def find($version; $seen):
  [$seen[] | select((.bytes | ip_version) == $version and .unusable == "")] as $usable
  | [$usable[] | select(.bytes | in_any($networks))] as $inside
  | route($version) as $route
  | if ($inside | length) > 0 then $inside | narrowed($version; $route)
    elif $route == null then {}
    else
      [$usable[] | select(.bytes == $route.source)] as $source
      | [$usable[] | select(.interface == $route.dev)] as $beside
      | if ($source | length) > 0 then {address: $source[0].text}
        elif ($beside | length) > 0 then $beside | narrowed($version; $route)
        else {} end
    end;

def no_candidate($seen):
  ($families | map("IPv\(.)") | join(" or ")) as $versions
  | ($seen | map(.shown + (if .unusable == "" then "" else " (\(.unusable))" end)) | join(", ")) as $listed
  | ([4, 6] | map(select(route(.))) | map("IPv\(.)") | join(", ")) as $found
  | "no \($versions) address inside the machine networks (\($networks | join(", "))) or at the source of a "
    + "default route; found: \(if $listed == "" then "none" else $listed end); "
    + "default routes: \(if $found == "" then "none" else $found end)";

def as_given($seen):
  (reduce ($given | splits("[[:space:]]+") | select(. != "") | {text: ascii_downcase, bytes: bytes}) as $one
    ([]; if $one.bytes != null and any(.[]; .bytes == $one.bytes) then . else . + [$one] end)) as $parsed
  | ([$parsed[] | select(.bytes == null) | .text]) as $wrong
  | ([$parsed[] | select(.bytes != null) | select(.bytes | never_dialled != "") | .text]) as $useless
  | if ($wrong | length) > 0 then {error: "invalid IP address: \($wrong[0])"}
    elif ($useless | length) > 0 then {error: "unreachable from other machines: \($useless[0])"}
    else
      # Prints an address in the spelling of `ip`.
      [$parsed[] | . as $one | ([$seen[] | select(.bytes == $one.bytes) | .text] + [$one.text])[0]] as $texts
      | {
          addresses: $texts,
          warnings: (
            [$parsed[] | . as $one | select([$seen[] | select(.bytes == $one.bytes)] == [])
              | "address not found on any interface: \(.text)"]
            + [$parsed[] | (.bytes | ip_version) as $version | select($families | index($version) == null)
              | "IPv\($version) is not used by the cluster: \(.text)"])
        }
    end;

def decision($seen):
  if $given | test("[^[:space:]]") then as_given($seen)
  else
    [$families[] | {version: ., found: find(.; $seen)}] as $found
    | ([$found[] | .found.error | select(.)]) as $errors
    | if ($errors | length) > 0 then {error: $errors[0]}
      elif all($found[]; .found.address == null) then {error: no_candidate($seen)}
      else {
        addresses: [$found[] | .found.address | select(.)],
        warnings: [$found[] | select(.found.address == null)
          | "no IPv\(.version) address found: agents can dial only the other IP version"]
      } end
  end;

decision(seen)
| (.addresses // [] | .[] | "address \(.)"), (.warnings // [] | .[] | "warning \(.)"), (.error // empty | "error \(.)")
