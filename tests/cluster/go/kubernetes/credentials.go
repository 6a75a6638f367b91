package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"flag"
	"fmt"
	"log"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A cluster of a test is not meant to outlive its certificates.
const lifetime = 365 * 24 * time.Hour

// identity is what one party of the cluster calls itself.
type identity struct {
	file   string   // <file>.crt, <file>.key, and <file>.kubeconfig unless it serves
	name   string   // the user
	groups []string // the user's groups
	serves bool     // a server's certificate, for the hosts given
}

// authority signs what the cluster's parties show each other.
type authority struct {
	folder      string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	serial      int64
}

// credentials writes a certificate authority, a certificate and a kubeconfig for every party, and the key that
// signs tokens of service accounts.
func credentials(arguments []string) {
	flags := flag.NewFlagSet("credentials", flag.ExitOnError)
	folder := flags.String("folder", "", "where to write")
	server := flags.String("server", "", "URL of the API server, for kubeconfigs")
	hosts := flags.String("hosts", "", "addresses and names of the servers, with commas between them")
	node := flags.String("node", "", "name of the node")
	if err := flags.Parse(arguments); err != nil {
		log.Fatal(err)
	}
	if err := writeCredentials(*folder, *server, strings.Split(*hosts, ","), *node); err != nil {
		log.Fatalf("cannot write credentials: %v", err)
	}
}

func writeCredentials(folder, server string, hosts []string, node string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority(folder)
	if err != nil {
		return err
	}
	for _, party := range []identity{
		{file: "kube-apiserver", name: "kube-apiserver", serves: true},
		{file: "kubelet-server", name: "system:node:" + node, groups: []string{"system:nodes"}, serves: true},
		{file: "kubelet-client", name: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}},
		{file: "admin", name: "admin", groups: []string{"system:masters"}},
		{file: "front-proxy", name: "front-proxy-client"},
		{file: "network-policies", name: "network-policies", groups: []string{"system:masters"}},
		{file: "kube-controller-manager", name: "system:kube-controller-manager"},
		{file: "kube-scheduler", name: "system:kube-scheduler"},
		{file: "kube-proxy", name: "system:kube-proxy"},
		{file: "kubelet", name: "system:node:" + node, groups: []string{"system:nodes"}},
	} {
		if err := ca.issue(party, server, hosts); err != nil {
			return err
		}
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	return writeKey(filepath.Join(folder, "service-accounts.key"), key)
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func newAuthority(folder string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "foretoken test cluster"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	ca := &authority{folder: folder, certificate: template, key: key, serial: 1}
	// The controller manager signs requests for certificates with it.
	if err := writeKey(filepath.Join(folder, "ca.key"), key); err != nil {
		return nil, err
	}
	return ca, writeCertificate(filepath.Join(folder, "ca.crt"), der)
}

func (ca *authority) issue(party identity, server string, hosts []string) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	ca.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(ca.serial),
		Subject:      pkix.Name{CommonName: party.name, Organization: party.groups},
		NotBefore:    ca.certificate.NotBefore,
		NotAfter:     ca.certificate.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if party.serves {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		for _, host := range hosts {
			if ip := net.ParseIP(host); ip != nil {
				template.IPAddresses = append(template.IPAddresses, ip)
			} else {
				template.DNSNames = append(template.DNSNames, host)
			}
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, key.Public(), ca.key)
	if err != nil {
		return err
	}
	path := filepath.Join(ca.folder, party.file)
	if err := writeCertificate(path+".crt", der); err != nil {
		return err
	}
	if err := writeKey(path+".key", key); err != nil {
		return err
	}
	if party.serves {
		return nil
	}
	return writeKubeconfig(path, server, filepath.Join(ca.folder, "ca.crt"))
}

// writeKubeconfig writes a file that holds all it needs, so that it can be copied elsewhere.
func writeKubeconfig(path, server, caPath string) error {
	encoded := make([]any, 0, 4)
	encoded = append(encoded, server)
	for _, file := range []string{caPath, path + ".crt", path + ".key"} {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		encoded = append(encoded, base64.StdEncoding.EncodeToString(content))
	}
	return os.WriteFile(path+".kubeconfig", fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: foretoken
contexts: [{name: foretoken, context: {cluster: foretoken, user: foretoken}}]
clusters: [{name: foretoken, cluster: {server: "%s", certificate-authority-data: %s}}]
users: [{name: foretoken, user: {client-certificate-data: %s, client-key-data: %s}}]
`, encoded...), 0o600)
}

func writeCertificate(path string, der []byte) error {
	block := &pem.Block{Type: "CERTIFICATE", Bytes: der}
	return os.WriteFile(path, pem.EncodeToMemory(block), 0o644)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
