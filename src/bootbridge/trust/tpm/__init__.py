"""A small TPM 2.0 client with the commands that attestation needs. Names are the TCG's where it has one.

codec          integers and TPM2B buffers
structures     public areas, quotes, signatures, PCR selections
commands       commands as bytes, responses parsed
return_codes   TPM_RC values as text with advice
templates      the endorsement key (EK) and the attestation key (AK)
credential     TPM2_MakeCredential in software
connection     sequences of commands on an open connection; flushes every handle
device         opens a connection and keeps blocking I/O off the event loop
register       one PCR as `trust.measurement.Register`
"""
