package broker

import (
	"reflect"
	"strconv"
	"strings"
)

// delimiter stands between a section and a key.
const delimiter = "."

// key is a key that a configuration may hold: a section, or one with a value.
type key struct {
	path string
	// kind is that of the value: a string, an int, a bool or a slice of strings. A section
	// is a struct, one whose keys are names of sections is a map.
	kind reflect.Kind
}

func (k key) isSection() bool { return k.kind == reflect.Struct || k.kind == reflect.Map }

// keyList are the keys that there are: those of Config, and of each broker that was
// named. They come from the tags, so that none is forgotten.
type keyList []key

func configKeys() keyList { return keysOf(reflect.TypeFor[Config](), "") }

// withBroker adds the keys of a broker, whose section is at path.
func (l keyList) withBroker(path string) keyList {
	l = append(l, key{path, reflect.Struct})
	return append(l, keysOf(reflect.TypeFor[Named](), path+delimiter)...)
}

func keysOf(config reflect.Type, section string) []key {
	var found []key
	for field := range config.Fields() {
		path := section + field.Tag.Get("koanf")
		value := field.Type
		if value.Kind() == reflect.Pointer {
			value = value.Elem()
		}
		found = append(found, key{path, value.Kind()})
		if value.Kind() == reflect.Struct {
			found = append(found, keysOf(value, path+delimiter)...)
		}
	}
	return found
}

func (l keyList) paths() []string {
	paths := make([]string, len(l))
	for i, k := range l {
		paths[i] = k.path
	}
	return paths
}

func (l keyList) find(path string) (key, bool) {
	for _, k := range l {
		if k.path == path {
			return k, true
		}
	}
	return key{}, false
}

// needed says what a value must be.
func (k key) needed() string {
	switch k.kind {
	case reflect.Struct, reflect.Map:
		return "a section of keys"
	case reflect.Int:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list of texts"
	default:
		return "text"
	}
}

// parse reads the value from text, as an environment variable holds it.
func (k key) parse(text string) (value any, ok bool) {
	var err error
	switch k.kind {
	case reflect.Int:
		value, err = strconv.Atoi(text)
	case reflect.Bool:
		value, err = strconv.ParseBool(text)
	case reflect.Slice:
		value = list(text)
	default:
		value = text
	}
	return value, err == nil // err would repeat the text
}

// list splits text at its commas.
func list(text string) []string {
	parts := []string{}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}
