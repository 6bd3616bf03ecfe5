package broker

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readFile reports false where the file could not be read, or not be understood at all.
func (l *loader) readFile(file string) bool {
	content, err := os.ReadFile(file) //nolint:gosec // the caller names it
	if err != nil {
		if path, ok := errors.AsType[*fs.PathError](err); ok {
			err = path.Err // the name is there already
		}
		l.problemf(file, "", "%w", err)
		return false
	}
	// Nodes, not maps: they know their lines, and keys that were given twice.
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document, second yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return true
		}
		l.problemf(file, "", "%w", withoutContent(err))
		return false
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		l.problemf(file, "", "there is more than one document in it, one is allowed")
	case !errors.Is(err, io.EOF):
		l.problemf(file, "", "%w", withoutContent(err))
	}
	y := yamlFile{loader: l, name: file, lines: map[string]int{}}
	root := document.Content[0]
	y.readSection(key{kind: reflect.Struct}, y.source(root), root)
	return isNull(root) || root.Kind == yaml.MappingNode
}

var errAlias = errors.New("a value begins with & or *: put it into quotes")

// withoutContent is the error of the parser, which tells lines and what it expects there,
// but also repeats names of aliases.
func withoutContent(err error) error {
	if strings.Contains(err.Error(), "anchor") {
		return errAlias
	}
	return err
}

type yamlFile struct {
	*loader

	name string
	// lines are those of the keys that were read: one may stand in its section, and as a
	// path beside it.
	lines map[string]int
}

func (y yamlFile) source(node *yaml.Node) string { return fmt.Sprintf("%s:%d", y.name, node.Line) }

// readSection reads the keys of a section; that of the empty path is the file.
func (y yamlFile) readSection(section key, source string, node *yaml.Node) {
	node = resolved(node)
	if isNull(node) {
		return
	}
	if node.Kind != yaml.MappingNode {
		y.wrongType(section, source, node)
		return
	}
	inside := ""
	if section.path != "" {
		inside = section.path + delimiter
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		source := y.source(name)
		path := inside + name.Value
		if !plainName.MatchString(name.Value) {
			y.problemf(inside+"?", source, "unknown key, which is no name and not shown here")
			continue
		}
		if first, ok := y.lines[path]; ok {
			y.problemf(path, source, "the key is given twice, first in line %d", first)
			continue
		}
		y.lines[path] = name.Line
		if section.kind == reflect.Map && brokerName.MatchString(name.Value) {
			y.keys = y.keys.withBroker(path)
		}
		switch k, ok := y.keys.find(path); {
		case !ok && section.kind == reflect.Map:
			y.problemf(section.path, source, noBrokerName, shown(name.Value))
		case !ok:
			y.problemf(path, source, "unknown key, %s", didYouMean("", path, y.keys.paths(), delimiter))
		case k.isSection():
			y.readSection(k, source, value)
		default:
			y.readValue(k, source, value)
		}
	}
}

func (y yamlFile) readValue(k key, source string, node *yaml.Node) {
	node = resolved(node)
	if isNull(node) {
		return
	}
	value, ok := valueOf(k, node)
	if !ok {
		y.wrongType(k, source, node)
		return
	}
	if err := y.settings.Set(k.path, value); err != nil {
		y.problemf(k.path, source, "%w", err)
	}
	y.sources[k.path] = source
}

// valueOf does not convert: what YAML takes for a number is no text, since 010 or 1e3
// would arrive as something else than was written.
func valueOf(k key, node *yaml.Node) (any, bool) {
	tag := node.ShortTag()
	switch {
	case k.kind == reflect.Int && tag == "!!int":
		return decoded[int](node)
	case k.kind == reflect.Bool && tag == "!!bool":
		return decoded[bool](node)
	case k.kind == reflect.Slice && node.Kind == yaml.SequenceNode:
		return texts(node)
	case k.kind == reflect.Slice && tag == "!!str":
		return list(node.Value), true
	case k.kind == reflect.String && tag == "!!str":
		return strings.TrimSpace(node.Value), true
	default:
		return nil, false
	}
}

func decoded[T any](node *yaml.Node) (any, bool) {
	var value T
	err := node.Decode(&value)
	return value, err == nil
}

func texts(sequence *yaml.Node) (any, bool) {
	values := []string{}
	for _, node := range sequence.Content {
		node = resolved(node)
		if node.ShortTag() != "!!str" {
			return nil, false
		}
		values = append(values, strings.TrimSpace(node.Value))
	}
	return values, true
}

func (y yamlFile) wrongType(k key, source string, node *yaml.Node) {
	what := map[string]string{
		"!!str": "text", "!!int": "a number", "!!float": "a number", "!!bool": "true or false",
		"!!seq": "a list", "!!map": "a section", "!!timestamp": "a date",
	}[node.ShortTag()]
	if what == "" {
		what = "something else"
	}
	y.problemf(cmp.Or(k.path, y.name), source, "is %s, %s is needed", what, k.needed())
}

func isNull(node *yaml.Node) bool { return node.ShortTag() == "!!null" }

func resolved(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}
