package steer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Files of an authority's directory, which is the mount of a Secret.
const (
	certFile = "ca.crt"
	keyFile  = "ca.key"
)

const (
	authorityLasts = 10 * 365 * 24 * time.Hour
	backdated      = time.Hour // clocks differ
)

// Authority signs the webhook's serving certificates. Its certificate is the caBundle of the MutatingWebhookConfiguration.
type Authority struct {
	cert    *x509.Certificate
	key     crypto.Signer
	certPEM []byte
	keyPEM  []byte
}

// NewAuthority makes one that signs for these DNS names and for loopback addresses only.
func NewAuthority(now time.Time, names ...string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := template("pitcrew-webhook-ca", now, authorityLasts)
	tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.MaxPathLenZero = true, true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign
	tmpl.PermittedDNSDomainsCritical, tmpl.PermittedDNSDomains = true, names
	tmpl.PermittedIPRanges = []*net.IPNet{{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return parseAuthority(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
}

// ReadAuthority reads ca.crt and ca.key of a directory.
func ReadAuthority(dir string) (*Authority, error) {
	cert, err := os.ReadFile(filepath.Join(dir, certFile))
	if err != nil {
		return nil, fmt.Errorf("webhook authority: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		return nil, fmt.Errorf("webhook authority: %w", err)
	}
	a, err := parseAuthority(cert, key)
	if err != nil {
		return nil, fmt.Errorf("webhook authority %s: %w", dir, err)
	}
	return a, nil
}

// Write puts ca.crt and ca.key into a directory, which it makes.
func (a *Authority) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, keyFile), a.keyPEM, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, certFile), a.certPEM, 0o644)
}

// Bundle is the authority's certificate, as caBundle takes it before it is encoded.
func (a *Authority) Bundle() []byte { return a.certPEM }

func parseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("ca.crt is not the certificate of an authority")
	}
	return &Authority{cert: pair.Leaf, key: signer, certPEM: certPEM, keyPEM: keyPEM}, nil
}

// issue makes a serving certificate with a key that no file ever holds.
func (a *Authority) issue(now time.Time, lasts time.Duration, names []string) (*tls.Certificate, error) {
	if now.Add(lasts).After(a.cert.NotAfter) {
		lasts = a.cert.NotAfter.Sub(now)
	}
	if lasts <= 0 {
		return nil, fmt.Errorf("webhook authority: %s has expired on %s; make a new one (docs/install.md)", certFile, a.cert.NotAfter.Format(time.DateOnly))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := template("pitcrew-webhook", now, lasts)
	tmpl.DNSNames, tmpl.IPAddresses = names, []net.IP{net.IPv4(127, 0, 0, 1)}
	tmpl.KeyUsage, tmpl.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

func template(name string, now time.Time, lasts time.Duration) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdated), NotAfter: now.Add(lasts)}
}
