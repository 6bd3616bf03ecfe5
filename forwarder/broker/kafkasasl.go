package broker

import (
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// SASLMechanism says how a user proves to Kafka who it is. The names are Kafka's.
type SASLMechanism string

const (
	// SASLPlain sends the password as it is.
	SASLPlain SASLMechanism = "PLAIN"
	// SASLScramSHA256 proves that the password is known, without sending it.
	SASLScramSHA256 SASLMechanism = "SCRAM-SHA-256"
	// SASLScramSHA512 is SASLScramSHA256 with the stronger hash.
	SASLScramSHA512 SASLMechanism = "SCRAM-SHA-512"
)

// KafkaSASL says how this client authenticates. For other mechanisms use package
// forwarder/kafka.
type KafkaSASL struct {
	// Mechanism is SASLPlain, SASLScramSHA256 or SASLScramSHA512. Default: none, and the
	// other keys must not be set.
	Mechanism SASLMechanism `koanf:"mechanism" yaml:"mechanism"`
	// User is the user's name.
	User string `koanf:"user" yaml:"user"`
	// Password is the user's password: better an environment variable than a file.
	Password Secret `koanf:"password" yaml:"password"`
	// WithoutTLS allows SASLPlain without TLS, where the password can be read on the way.
	WithoutTLS bool `koanf:"without_tls" yaml:"without_tls"`
}

func (k KafkaSASL) check(withTLS bool) []*keyError {
	if k == (KafkaSASL{}) {
		return nil
	}
	problems := oneOf("kafka.sasl.mechanism", k.Mechanism, SASLPlain, SASLScramSHA256, SASLScramSHA512)
	if k.User == "" {
		problems = append(problems, keyErrorf("kafka.sasl.user", "is empty"))
	}
	switch k.Password {
	case "":
		problems = append(problems, keyErrorf("kafka.sasl.password", "is empty"))
	case mask:
		problems = append(problems, &keyError{key: "kafka.sasl.password", err: errMasked})
	}
	if k.Mechanism == SASLPlain && !withTLS && !k.WithoutTLS {
		problems = append(problems, keyErrorf("kafka.tls.enabled",
			"is not true, and kafka.sasl.mechanism PLAIN would send the password for anyone to read: "+
				"set it, or allow that with kafka.sasl.without_tls"))
	}
	return problems
}

func (k KafkaSASL) mechanism() sasl.Mechanism {
	switch k.Mechanism {
	case SASLPlain:
		return plain.Auth{User: k.User, Pass: string(k.Password)}.AsMechanism()
	case SASLScramSHA256:
		return scram.Auth{User: k.User, Pass: string(k.Password)}.AsSha256Mechanism()
	case SASLScramSHA512:
		return scram.Auth{User: k.User, Pass: string(k.Password)}.AsSha512Mechanism()
	default:
		return nil
	}
}
