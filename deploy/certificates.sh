#!/usr/bin/env bash
# Makes what all parties of a cluster share: `cluster.secret`, and a certificate for the names under which they are
# called (`certificate.pem`, `key.pem`), signed by an authority of its own (`authority.pem`).
#
#   deploy/certificates.sh DIRECTORY NAME…
#
# A name is a host (`worker-1`), all hosts of a domain (`*.tessera-worker.tessera.svc`) or an address (`10.0.0.5`). Each
# name that a party is called by has to be among them: the host in `--scheduler` of the workers, and the host in
# `--advertise` of each worker. A `*` stands for one label, and at least two labels follow it.
#
# An existing certificate stays as it is. The authority's key is not stored: other names take a new certificate, in an
# empty directory, for all parties.
set -euo pipefail
umask 077

if [ $# -lt 2 ]; then
    echo "usage: $0 DIRECTORY NAME…" >&2
    exit 2
fi
directory=$1
shift
mkdir -p "$directory"
if [ -e "$directory/certificate.pem" ]; then
    echo "$directory has a certificate; it stays" >&2
    exit 0
fi
command -v openssl > /dev/null || { echo "openssl is required" >&2; exit 1; }
days=825
made=$(mktemp -d "$directory/.making.XXXXXX")
trap 'rm -rf "$made"' EXIT

names=""
for name in "$@"; do
    case $name in
        *,*) echo "\`$name\` is not one name: separate names by spaces" >&2; exit 2 ;;
        "*."*.*) ;;
        *"*"*)
            echo "\`$name\` matches no host: at least two labels follow the \`*\`, as in \`*.tessera-worker.tessera.svc\`" >&2
            exit 2
            ;;
    esac
    case $name in
        *:*) kind=IP ;;
        *[!0-9.]*) kind=DNS ;;
        *) kind=IP ;;
    esac
    names="$names${names:+,}$kind:$name"
done

# Each party is called and calls others, so the certificate is for both.
cat > "$made/extensions" <<END
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = $names
END
key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
key "$made/authority.key"
openssl req -x509 -new -key "$made/authority.key" -subj "/CN=Tessera cluster authority" -days "$days" \
    -addext "basicConstraints = critical, CA:TRUE" -addext "keyUsage = critical, keyCertSign" \
    -out "$made/authority.pem"
key "$made/key.pem"
openssl req -new -key "$made/key.pem" -subj "/CN=Tessera cluster" -out "$made/request"
openssl x509 -req -in "$made/request" -CA "$made/authority.pem" -CAkey "$made/authority.key" -CAcreateserial \
    -days "$days" -extfile "$made/extensions" -out "$made/certificate.pem" 2> "$made/log" || {
    cat "$made/log" >&2
    exit 1
}
openssl rand -hex 32 > "$made/cluster.secret"

# The certificate comes last: where it is, the rest is too.
for file in cluster.secret authority.pem key.pem certificate.pem; do
    mv -n "$made/$file" "$directory/$file"
done
echo "$directory: a secret and a certificate for $names, good for $days days" >&2
