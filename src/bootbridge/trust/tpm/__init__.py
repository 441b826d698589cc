"""A small TPM 2.0 client: as much as attestation needs, spoken straight to the chip.

`codec`, `structures`, `commands`, `return_codes`, `templates` and `credential` do no I/O; `chip` says what is
done in which order on an open connection; `device` opens one and keeps the event loop free; `register`
is a PCR behind `trust.measurement.Register`.
"""
