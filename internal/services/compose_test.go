package services_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

type compose struct {
	Services map[string]struct {
		Image       string
		Environment map[string]string
		Command     []string
		Volumes     []string
		Ports       []string
	}
	Configs map[string]struct{ Content string }
}

func readCompose(t *testing.T) compose {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(readFile(t, "docker-compose.yml")))
	var c compose
	require.NoError(t, decoder.Decode(&c))
	require.Len(t, c.Services, 4)
	return c
}

// readFile reads a file of the clone.
func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	require.NoError(t, err)
	return string(text)
}

// find returns what the expression's only group matches.
func find(t *testing.T, expression, text string) string {
	t.Helper()
	found := regexp.MustCompile(expression).FindStringSubmatch(text)
	require.Len(t, found, 2, "%s in %s", expression, text)
	return found[1]
}

// settings reads lines of the form name = value. Comments begin with one of two signs.
func settings(text string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if found && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";") {
			values[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return values
}

// The servers of docker-compose.yml are those of 'make services', at the same addresses.
func TestComposeHasTheAddressesOfMakeServices(t *testing.T) {
	t.Parallel()
	c := readCompose(t)
	makefile := readFile(t, "Makefile")
	for service, inside := range map[string]string{"postgres": "5432", "pgbouncer": "6432", "rabbitmq": "5672", "kafka": ""} {
		variable := "SERVICES_" + strings.ToUpper(service) + "_PORT"
		outside := "${" + variable + ":-" + find(t, `(?m)^`+variable+` \?= (\d+)$`, makefile) + "}"
		if inside == "" {
			inside = outside
		}
		require.Equal(t, []string{"127.0.0.1:" + outside + ":" + inside}, c.Services[service].Ports)
		require.Contains(t, readFile(t, "internal/services/"+scriptOf(t, service)), strings.TrimSuffix(strings.TrimPrefix(outside, "$"), "}"))
	}

	postgres := c.Services["postgres"].Environment
	require.Equal(t, find(t, `postgres://(\S+)@127\.0\.0\.1:\$\$SERVICES_POSTGRES_PORT`, makefile), postgres["POSTGRES_USER"]+":"+postgres["POSTGRES_PASSWORD"])
	require.Equal(t, find(t, `\$\$SERVICES_POSTGRES_PORT/(\w+)\?`, makefile), postgres["POSTGRES_DB"])

	rabbitmq := settings(c.Configs["rabbitmq.conf"].Content)
	require.Equal(t, find(t, `amqp://(\S+)@`, makefile), rabbitmq["default_user"]+":"+rabbitmq["default_pass"])
}

// scriptOf is the file of internal/services that has a server's default port.
func scriptOf(t *testing.T, service string) string {
	t.Helper()
	if service == "rabbitmq" {
		return "rabbitmq/node.sh"
	}
	return service + ".sh"
}

func TestComposeConfiguresPostgresAsMakeServices(t *testing.T) {
	t.Parallel()
	postgres := readCompose(t).Services["postgres"]
	script := readFile(t, "internal/services/postgres.sh")
	require.Contains(t, postgres.Volumes, "./internal/services/postgres/outbox.conf:/etc/postgresql/outbox.conf:ro")
	require.Contains(t, postgres.Command, "config_file=/etc/postgresql/outbox.conf")
	require.Contains(t, script, postgres.Environment["POSTGRES_INITDB_ARGS"])
	require.Contains(t, script, "--auth="+postgres.Environment["POSTGRES_HOST_AUTH_METHOD"])
}

func TestComposeConfiguresPgbouncerAsMakeServices(t *testing.T) {
	t.Parallel()
	clone := newClone(t, "clone")
	clone.withoutCommand(t, "pgbouncer.sh", "")
	clone.mustRun(t, []string{"POSTGRES_DSN=", "SERVICES_POSTGRES_PORT=5432", "SERVICES_PGBOUNCER_PORT=6432"}, "bash", "-c",
		`source internal/services/pgbouncer.sh; take_apart "$postgres_dsn"; write_settings "$root/written.ini"`)
	written, err := os.ReadFile(filepath.Join(clone.path, "written.ini"))
	require.NoError(t, err)

	c := readCompose(t)
	require.Contains(t, c.Services["pgbouncer"].Volumes, "./internal/services/pgbouncer/settings.ini:/etc/outbox/settings.ini:ro")
	const include = "%include /etc/outbox/settings.ini"
	content := c.Configs["pgbouncer.ini"].Content
	require.Contains(t, content, include)
	content = strings.Replace(content, include, readFile(t, "internal/services/pgbouncer/settings.ini"), 1)

	// In a container it listens everywhere, and Postgres is another host.
	want := strings.ReplaceAll(string(written), "host='127.0.0.1'", "host='postgres'")
	want = strings.Replace(want, "listen_addr = 127.0.0.1", "listen_addr = *", 1)
	require.Equal(t, settings(want), settings(content))
	require.Equal(t, "transaction", settings(content)["pool_mode"])
}

func TestComposeConfiguresKafkaAsMakeServices(t *testing.T) {
	t.Parallel()
	kafka := readCompose(t).Services["kafka"]
	script := readFile(t, "internal/services/kafka.sh")
	version := find(t, `(?s)<artifactId>kafka_[\d.]+</artifactId>\s*<version>([\d.]+)</version>`, readFile(t, "internal/services/kafka/pom.xml"))
	require.Equal(t, "apache/kafka:"+version, kafka.Image)
	require.Equal(t, find(t, `(?m)^cluster_id=(\S+)$`, script), kafka.Environment["CLUSTER_ID"])
	heap := kafka.Environment["KAFKA_HEAP_OPTS"]
	require.Contains(t, script, heap)

	// What has to do with listeners differs; the others are the same, one by one.
	differs := regexp.MustCompile(`^(listeners|advertised\.listeners|controller\.|listener\.|inter\.broker\.|log\.dirs$|heap\.|sasl\.|ssl\.|authorizer\.|super\.|principal\.)`)
	got := map[string]string{}
	for name, value := range kafka.Environment {
		if property, found := strings.CutPrefix(name, "KAFKA_"); found {
			got[strings.ToLower(strings.ReplaceAll(property, "_", "."))] = value
		}
	}
	want := settings(readFile(t, "internal/services/kafka/server.properties"))
	for _, properties := range []map[string]string{got, want} {
		maps.DeleteFunc(properties, func(name, _ string) bool { return differs.MatchString(name) })
	}
	require.Greater(t, len(want), 10)
	require.Equal(t, want, got)
}

func TestComposeConfiguresRabbitMQAsMakeServices(t *testing.T) {
	t.Parallel()
	want := settings(readFile(t, "internal/services/rabbitmq/rabbitmq.conf"))
	maps.DeleteFunc(want, func(name, _ string) bool {
		return strings.HasPrefix(name, "listeners.") || strings.HasPrefix(name, "ssl_options.")
	})
	require.Equal(t, want, settings(readCompose(t).Configs["rabbitmq.conf"].Content))
}
