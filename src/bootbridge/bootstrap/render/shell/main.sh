# --- run by hand, not sourced: on a node whose bootstrap is given up, say

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -uo pipefail
  case ${1-} in
    address) bootbridge_find_addresses && printf '%s\n' "${BOOTBRIDGE_ADDRESSES[@]}" ;;
    cleanup) bootbridge_cleanup ;;
    *)
      printf 'usage: %s address|cleanup\n' "$0" >&2
      exit 2
      ;;
  esac
fi
