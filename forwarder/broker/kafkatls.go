package broker

import "crypto/tls"

// KafkaTLS says how connections to Kafka are encrypted. All files are in PEM format.
// There is no switch to trust any certificate: give the authority's, or the name.
type KafkaTLS struct {
	// Enabled switches TLS on. Default: false, and the other keys must not be set.
	Enabled bool `koanf:"enabled" yaml:"enabled"`
	// CAFile holds the certificates of the authorities that are trusted, instead of those
	// of the operating system. It is read when the publisher is opened.
	CAFile string `koanf:"ca_file" yaml:"ca_file"`
	// CertFile and KeyFile hold this client's certificate (followed by those between it
	// and the authority's) and its private key, for brokers that ask for one. They are
	// read anew for each connection, so that a renewed certificate needs no restart.
	CertFile string `koanf:"cert_file" yaml:"cert_file"`
	KeyFile  string `koanf:"key_file"  yaml:"key_file"`
	// ServerName is the name that the brokers' certificates are checked for. Default: the
	// host of each broker's address.
	ServerName string `koanf:"server_name" yaml:"server_name"`
}

// config returns nil where TLS is off or there are problems.
func (k KafkaTLS) config() (*tls.Config, []*keyError) {
	switch {
	case k == KafkaTLS{}:
		return nil, nil
	case !k.Enabled:
		return nil, []*keyError{keyErrorf("kafka.tls.enabled", "is not true, but other keys of the section are set")}
	}
	return TLS{CAFile: k.CAFile, CertFile: k.CertFile, KeyFile: k.KeyFile, ServerName: k.ServerName}.config("kafka.tls")
}
