package callout

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/nats-io/nkeys"
)

// Keys are the three by which NATS and the callout know each other: the user that the callout connects as, the account key that signs
// what it grants, and the curve key to which the server encrypts its questions.
type Keys struct{ user, issuer, curve nkeys.KeyPair }

// kinds are the beginnings of the seeds in a file of keys, and how each kind is made.
var kinds = []struct {
	prefix string
	name   string
	make   func() (nkeys.KeyPair, error)
	at     func(*Keys) *nkeys.KeyPair
}{
	{"SU", "NATS_CALLOUT_USER", nkeys.CreateUser, func(k *Keys) *nkeys.KeyPair { return &k.user }},
	{"SA", "NATS_CALLOUT_ISSUER", nkeys.CreateAccount, func(k *Keys) *nkeys.KeyPair { return &k.issuer }},
	{"SX", "NATS_CALLOUT_XKEY", nkeys.CreateCurveKeys, func(k *Keys) *nkeys.KeyPair { return &k.curve }},
}

// ReadKeys reads a file that MakeKeys wrote: three seeds, a line each. A file that others than its owner may read is an error, group
// apart, which a Kubernetes Secret's fsGroup needs.
func ReadKeys(file string) (Keys, error) {
	var k Keys
	st, err := os.Stat(file)
	if err != nil {
		return k, fmt.Errorf("keys of the NATS callout: %w; make them by `pitcrew bus keys %s`", err, file)
	}
	if st.Mode().Perm()&0o007 != 0 {
		return k, fmt.Errorf("keys of the NATS callout: everybody may read %s (mode %#o): chmod 600, or defaultMode 0400 of the Secret's volume", file, st.Mode().Perm())
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return k, fmt.Errorf("keys of the NATS callout: %w", err)
	}
	for line := range bytes.Lines(raw) {
		seed := bytes.TrimSpace(line)
		for _, kind := range kinds {
			if !bytes.HasPrefix(seed, []byte(kind.prefix)) {
				continue
			}
			if *kind.at(&k), err = nkeys.FromSeed(seed); err != nil {
				return k, fmt.Errorf("keys of the NATS callout: %s: the seed %s…: %w", file, kind.prefix, err)
			}
		}
	}
	for _, kind := range kinds {
		if *kind.at(&k) == nil {
			return k, fmt.Errorf("keys of the NATS callout: %s has no seed that begins with %s", file, kind.prefix)
		}
	}
	return k, nil
}

// MakeKeys makes a file of new keys, which only its owner may read. A file that is there is left alone, and no error.
func MakeKeys(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keys of the NATS callout: %w", err)
	}
	var seeds [][]byte
	for _, kind := range kinds {
		pair, err := kind.make()
		if err != nil {
			return errors.Join(err, f.Close())
		}
		seed, err := pair.Seed()
		if err != nil {
			return errors.Join(err, f.Close())
		}
		seeds = append(seeds, seed)
	}
	_, err = f.Write(append(bytes.Join(seeds, []byte("\n")), '\n'))
	return errors.Join(err, f.Close())
}

// Public are the public halves, as the variables that deploy/nats-auth.conf takes: NAME=value, a line each.
func (k Keys) Public() (string, error) {
	var b strings.Builder
	for _, kind := range kinds {
		public, err := (*kind.at(&k)).PublicKey()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s=%s\n", kind.name, public)
	}
	return b.String(), nil
}

// Configure is conf with the public halves as its variables.
func (k Keys) Configure(conf string) (string, error) {
	public, err := k.Public()
	return strings.ReplaceAll(public, "=", ": ") + conf, err
}
