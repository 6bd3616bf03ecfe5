package broker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// TLS says whom to trust, and who we are, where a broker is reached with TLS (1.2 or
// newer). The zero value trusts the system's authorities and shows no certificate. All
// files are PEM.
type TLS struct {
	// CAFile holds the authorities that the broker's certificate may come from. It is read
	// once. Default: the system's.
	CAFile string `koanf:"ca_file" yaml:"ca_file"`
	// CertFile and KeyFile hold the certificate that is shown to the broker, and its key.
	// They are read for each connection, so that a renewed certificate is used without a
	// restart. Default: none is shown.
	CertFile string `koanf:"cert_file" yaml:"cert_file"`
	KeyFile  string `koanf:"key_file" yaml:"key_file"`
	// ServerName is the name that the broker's certificate must be for. Default: the host
	// of the address.
	ServerName string `koanf:"server_name" yaml:"server_name"`
}

var (
	errNoCertificates = errors.New("there is no certificate in PEM form in it")
	errHalfAPair      = errors.New("is empty: cert_file and key_file are needed together")
	errNotTLS         = errors.New("is set, but amqp.uri does not begin with amqps: it would be in plain text")
)

// check reads the files, so that what is wrong with them shows before anything connects.
func (t TLS) check(section string, uri URI) []*keyError {
	if t == (TLS{}) {
		return nil
	}
	_, problems := t.config(section)
	if uri != "" && !strings.HasPrefix(string(uri), "amqps:") {
		problems = append(problems, &keyError{key: section, err: errNotTLS})
	}
	return problems
}

// config is nil where there are problems.
func (t TLS) config(section string) (*tls.Config, []*keyError) {
	var problems []*keyError
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		authorities, err := readAuthorities(t.CAFile)
		if err != nil {
			problems = append(problems, &keyError{key: section + ".ca_file", err: err})
		}
		cfg.RootCAs = authorities
	}
	if t.CertFile != "" || t.KeyFile != "" {
		problems = append(problems, t.checkPair(section)...)
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return t.certificate() }
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return cfg, nil
}

func readAuthorities(file string) (*x509.CertPool, error) {
	content, err := os.ReadFile(file) //nolint:gosec // the configuration names it
	if err != nil {
		return nil, withoutName(err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(content) {
		return nil, errNoCertificates
	}
	return authorities, nil
}

func (t TLS) checkPair(section string) (problems []*keyError) {
	for _, half := range []struct{ key, file string }{{".cert_file", t.CertFile}, {".key_file", t.KeyFile}} {
		err := errHalfAPair
		if half.file != "" {
			_, err = os.ReadFile(half.file)
		}
		if err != nil {
			problems = append(problems, &keyError{key: section + half.key, err: withoutName(err)})
		}
	}
	if len(problems) > 0 {
		return problems
	}
	if _, err := t.certificate(); err != nil {
		return []*keyError{{key: section + ".cert_file", err: err}}
	}
	return nil
}

func (t TLS) certificate() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", withoutName(err))
	}
	return &pair, nil
}

// withoutName leaves out the name of a file: something else may stand there by mistake,
// such as an address with its password.
func withoutName(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}
