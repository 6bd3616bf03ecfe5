package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// sendsSecrets names the mechanisms that send what they authenticate with as it is:
// whoever reads the connection can use it.
var sendsSecrets = map[string]bool{"PLAIN": true, "OAUTHBEARER": true}

func (c Config) checkSecurity() error {
	switch {
	case c.SASL == nil && c.SASLWithoutTLS:
		return fmt.Errorf("%w: SASLWithoutTLS is true, but SASL is not set", ErrInvalidConfig)
	case c.SASL == nil || c.TLS != nil || c.SASLWithoutTLS:
		return nil
	case sendsSecrets[c.SASL.Name()]:
		return fmt.Errorf("%w: SASL is %s, which sends its secret as it is, and TLS is not set; SASLWithoutTLS allows it",
			ErrInvalidConfig, c.SASL.Name())
	default:
		return nil
	}
}

func (c Config) securityOptions() []kgo.Opt {
	var options []kgo.Opt
	if c.TLS != nil {
		options = append(options, kgo.DialTLSConfig(c.TLS))
	}
	if c.SASL != nil {
		options = append(options, kgo.SASL(c.SASL))
	}
	return options
}
