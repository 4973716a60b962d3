package ignition

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"strings"

	"unbounded/internal/config"
)

var credentialName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// check reports on the configuration and is its source, with the image in it.
func (c Config) check(image string, report *Report) Source {
	ways := 0
	for _, given := range []bool{c.Inline != nil, c.Source.URL != "", c.Credential != ""} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		what := isMissing
		if ways > 1 {
			what = "is given in more than one way"
		}
		report.fail("config", what, fixConfigOne)
		return Source{}
	}
	if c.Inline == nil && image != "" {
		report.fail("root-image", "cannot be set", fixImage)
	}
	switch {
	case c.Credential != "":
		if !credentialName.MatchString(c.Credential) || strings.Trim(c.Credential, ".") == "" || len(c.Credential) > 255 {
			report.fail("config-credential", "is not the name of a credential", fixCredential)
		}
		return Source{}
	case c.Source.URL != "":
		c.Source.check("config-url", fixHash, report)
		if u, err := url.Parse(c.Source.URL); err == nil && u.Scheme == "http" {
			report.warn("config-url", overHTTP, fixHTTPS)
		}
		return c.Source
	}
	return Source{Content: c.inline(image, report)}
}

// inline checks a configuration as the host will, and says what of it is secret.
func (c Config) inline(image string, report *Report) []byte {
	data := c.Inline
	if image != "" && strings.TrimSpace(image) == "" {
		report.fail("root-image", "is blank", "name an image, or leave it out")
	} else if image != "" {
		var err error
		if data, err = setImage(data, image); err != nil {
			report.fail("config", err.Error(), "")
			return nil
		}
	}
	// The host is not known yet: its name may become MachineName.
	checked, err := config.Parse(data, config.Host{Hostname: "host"})
	var problems config.Problems
	switch {
	case errors.As(err, &problems):
		for _, p := range problems {
			fix := p.Fix
			if p.Path == "" { // the remedy names the file that a host has
				fix = fixConfig
			}
			report.fail(at(p.Path), p.What, fix)
		}
		return nil
	case err != nil:
		report.fail("config", err.Error(), "")
		return nil
	}
	for _, notice := range checked.Notices {
		report.warn("config", strings.TrimPrefix(notice, "config: "), "")
	}
	for _, s := range secrets(bytes.TrimPrefix(data, bom)) {
		report.warn(at(s.path), s.what, fixSecret)
	}
	return data
}

// bom is what some editors begin a file with, and hosts read over.
var bom = []byte("\ufeff")

func at(path string) string {
	if path == "" {
		return "config"
	}
	return "config." + path
}

// setImage is a configuration with another OCIImage. Everything else stays as it is written.
func setImage(data []byte, image string) ([]byte, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(bytes.TrimPrefix(data, bom), &keys); err != nil {
		return nil, errors.New("is not a JSON document") // the error may show a secret
	}
	const key = "OCIImage"
	for have := range keys {
		if strings.EqualFold(have, key) { // as encoding/json takes it
			delete(keys, have)
		}
	}
	if keys == nil {
		keys = map[string]json.RawMessage{}
	}
	var err error
	if keys[key], err = json.Marshal(image); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err = encoder.Encode(keys)
	return out.Bytes(), err
}
