package broker

import (
	"errors"
	"os"
	"strings"

	"github.com/knadh/koanf/v2"
)

// Load reads a YAML file, puts environment variables over it, and validates the result.
// An empty file name means no file, an empty envPrefix no environment; a file that is
// missing is an error.
//
// With the prefix "OUTBOX_BROKER_" (its last underscore may be left out) the key
// kafka.max_message_bytes is the variable OUTBOX_BROKER_KAFKA_MAX_MESSAGE_BYTES. A list
// is separated by commas. Brokers get their names in the file; brokers.eu-west.amqp.uri is
// then OUTBOX_BROKER_BROKERS_EU_WEST_AMQP_URI. White space around values does not count. A variable that is
// empty counts as not set, as a key without a value does in YAML.
//
// Unknown keys, unknown variables with the prefix, keys given twice, values of a wrong
// type and what Validate finds are reported all at once; each error wraps
// ErrInvalidConfig and says where it comes from. Kubernetes sets variables for services:
// where a service's name begins as the prefix does, choose another prefix, or set
// enableServiceLinks to false.
func Load(file, envPrefix string) (Config, error) {
	return load(file, envPrefix, os.Environ)
}

func load(file, envPrefix string, environ func() []string) (Config, error) {
	l := loader{keys: configKeys(), settings: koanf.New(delimiter), sources: map[string]string{}}
	complete := true
	if file != "" {
		complete = l.readFile(file)
	}
	if envPrefix != "" {
		l.readEnvironment(strings.TrimSuffix(envPrefix, "_")+"_", environ)
	}
	var cfg Config
	if err := l.settings.Unmarshal("", &cfg); err != nil {
		// Not with err, which repeats values. The types were checked: it does not happen.
		l.problems = append(l.problems, keyErrorf("kind", "the settings do not fit into a Config"))
		complete = false
	}
	if complete { // else what is missing may stand where it could not be read
		l.validate(cfg)
	}
	if len(l.problems) > 0 {
		return Config{}, errors.Join(asErrors(l.problems)...)
	}
	return cfg, nil
}

// loader collects what the sources say, and everything that is wrong with it.
type loader struct {
	keys     keyList
	settings *koanf.Koanf
	sources  map[string]string // where a key was set last
	problems []*keyError
}

func (l *loader) problemf(key, source, format string, args ...any) {
	p := keyErrorf(key, format, args...)
	p.source = source
	l.problems = append(l.problems, p)
}

// validate leaves out keys whose value, or whose section, could not be read: there is an
// error for them.
func (l *loader) validate(cfg Config) {
	unread := map[string]bool{}
	for _, p := range l.problems {
		unread[p.key] = true
	}
	for _, p := range cfg.check() {
		if isOrIsIn(unread, p.key) {
			continue
		}
		p.source = l.sources[p.key]
		l.problems = append(l.problems, p)
	}
}

// isOrIsIn says whether the key or a section around it is among keys.
func isOrIsIn(keys map[string]bool, path string) bool {
	for !keys[path] {
		end := strings.LastIndex(path, delimiter)
		if end < 0 {
			return false
		}
		path = path[:end]
	}
	return true
}
