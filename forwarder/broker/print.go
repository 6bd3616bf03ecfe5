package broker

import "fmt"

// Format lets passwords mask themselves even where a Config is behind a pointer in another
// struct: for a verb that does not fit a pointer, package fmt asks only the pointer
// itself, and prints what is behind it as it is.
func (c Config) Format(state fmt.State, verb rune) {
	type config Config // without this method
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), config(c))
}

// Format is as Config's.
func (a AMQP) Format(state fmt.State, verb rune) {
	type section AMQP
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), section(a))
}

// Format is as Config's.
func (n Named) Format(state fmt.State, verb rune) {
	type named Named
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), named(n))
}

// Format is as Config's.
func (k Kafka) Format(state fmt.State, verb rune) {
	type section Kafka
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), section(k))
}

// Format is as Config's.
func (k KafkaSASL) Format(state fmt.State, verb rune) {
	type section KafkaSASL
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), section(k))
}
