"""Trust: certificate authorities, evidence, attested TLS and TPMs.

authority           short-lived CAs and the certificates that they issue
certificate_chain   verification of certificates without a host name
fingerprint         the name of a public key in policies and audit lines
measurement         registers that can only be extended, and their expected values
key_hierarchy       which secret is derived from which
init_secret         the secret that authorises an init, and its hash
tpm                 a TPM 2.0 client
evidence            how a peer proves what it is
attested            TLS whose ends exchange evidence

Not imported by the proxy server and the agent: they read certificates through `ssl`, without this package's
dependencies.
"""
