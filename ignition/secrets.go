package ignition

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"unbounded/internal/paths"
)

// What gives a secret away. Nobody can know them all: these are the names and the forms that credentials of nodes,
// registries and clouds have.
var (
	secretName  = regexp.MustCompile(`(?i)(secret|passw|token|kubeconfigdata|private|client-key|authorization|apikey)`)
	secretFlag  = regexp.MustCompile(`(?i)(secret|passw|token|key)[^=]*=.`)
	secretValue = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$|PRIVATE KEY-----`) // a bootstrap token, a key
)

// finding is a string in a document that is, or may be, a secret.
type finding struct{ path, what string }

// secrets finds them in a JSON document, in the order of its keys. None of the findings shows a value.
func secrets(data []byte) []finding {
	var value any
	if json.Unmarshal(data, &value) != nil {
		return nil
	}
	var found []finding
	walk("", "", value, func(at, key, text string) {
		if what := judge(at, key, text); what != "" {
			found = append(found, finding{at, what})
		}
	})
	return found
}

// judge says what a string of a document is to be warned of as, if it is.
func judge(at, key, text string) string {
	lower := strings.ToLower(at)
	switch {
	case text == "":
		return ""
	case secretName.MatchString(key), secretValue.MatchString(text), strings.Contains(lower, "execcredential.env") && strings.EqualFold(key, "value"):
		return inClear
	case strings.Contains(lower, "execcredential.") && secretFlag.MatchString(text):
		return mayHold
	case signed(text):
		return maySign
	}
	return ""
}

// walk visits every string of a value. The key is the last name on the way to it.
func walk(at, key string, value any, visit func(at, key, text string)) {
	switch value := value.(type) {
	case string:
		visit(at, key, value)
	case []any:
		for i, element := range value {
			walk(fmt.Sprintf("%s[%d]", at, i), key, element, visit)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			path := name
			if !plainKey.MatchString(name) {
				path = fmt.Sprintf("[%q]", name)
			} else if at != "" {
				path = "." + name
			}
			walk(at+path, name, value[name], visit)
		}
	}
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// signed tells whether a URL holds what may be a credential: a user, or a query.
func signed(text string) bool {
	scheme, _, found := strings.Cut(text, "://")
	if !found || !plainKey.MatchString(scheme) {
		return false
	}
	u, err := url.Parse(strings.ReplaceAll(text, "%s", "x"))
	return err != nil || u.User != nil || u.RawQuery != ""
}

// holdsSecret tells whether a file looks like a credential, by where it goes or by what is in it.
func holdsSecret(f File) bool {
	if f.Source.URL != "" || len(f.Source.Content) == 0 {
		return false
	}
	switch path.Dir(f.Path) {
	case "/etc/credstore":
		return true
	case "/etc/credstore.encrypted":
		return false
	}
	content := f.Source.Content
	return f.Path == paths.RegistryAuth || secretValue.Match(content) || len(secrets(content)) > 0 ||
		bytes.Contains(content, []byte(`"auths"`)) || secretLine.Match(content)
}

// secretLine is a line of YAML, as kubeconfigs are, or of shell.
var secretLine = regexp.MustCompile(`(?mi)^\s*(- )?[a-z0-9_-]*(secret|passw|token|client-key)[a-z0-9_-]*\s*[:=]\s*\S`)
