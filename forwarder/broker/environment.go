package broker

import (
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/env/v2"
)

// readEnvironment puts the variables with the prefix over what was read before.
func (l *loader) readEnvironment(prefix string, environ func() []string) {
	variables := map[string]key{}
	names := []string{}
	toVariable := strings.NewReplacer(delimiter, "_", "-", "_")
	for _, k := range l.keys {
		if !k.isSection() {
			name := prefix + strings.ToUpper(toVariable.Replace(k.path))
			variables[name] = k
			names = append(names, name)
		}
	}
	provider := env.Provider(delimiter, env.Opt{
		Prefix:      prefix,
		EnvironFunc: func() []string { return slices.Sorted(slices.Values(environ())) },
		TransformFunc: func(variable, value string) (string, any) {
			if value = strings.TrimSpace(value); value == "" {
				return "", nil
			}
			k, ok := variables[variable]
			if !ok {
				l.problemf(variable, "", "unknown environment variable, %s", didYouMean(prefix, variable, names, "_"))
				return "", nil
			}
			parsed, ok := k.parse(value)
			if !ok {
				l.problemf(k.path, variable, "is text, %s is needed", k.needed())
				return "", nil
			}
			l.sources[k.path] = variable
			return k.path, parsed
		},
	})
	if err := l.settings.Load(provider, nil); err != nil {
		l.problemf(prefix+"*", "", "%w", err)
	}
}
