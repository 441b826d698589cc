# --- manual run: executed, not sourced, for example after an abandoned bootstrap

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -uo pipefail
  case ${1-} in
    address) bootbridge_find_addresses && printf '%s\n' "${BOOTBRIDGE_ADDRESSES[@]}" ;;
    cleanup) if [[ ${2-} == --abandoned ]]; then bootbridge_cleanup_abandoned; else bootbridge_cleanup; fi ;;
    cleanup-retry) bootbridge_cleanup_retry ;;
    *)
      printf 'usage: %s address|cleanup [--abandoned]|cleanup-retry\n' "$0" >&2
      exit 2
      ;;
  esac
fi
