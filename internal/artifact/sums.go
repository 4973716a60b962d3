package artifact

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"

	"unbounded/internal/config"
	"unbounded/internal/fetch"
)

const maxSums = 1 << 20

var sumForm = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)

// published is the digest that the item's project publishes.
func published(ctx context.Context, client *fetch.Client, item Item) (string, error) {
	doc, err := client.Bytes(ctx, item.Sums, nil, maxSums)
	if status, ok := errors.AsType[*fetch.StatusError](err); ok && status.Code == http.StatusNotFound {
		return "", fmt.Errorf("%s: no published digest: %w; put one beside it, or pin it as Downloads.….SHA256", item, err)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", item, err)
	}
	sum, err := parseSums(string(doc.Body), fileName(item.URL))
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", item, fetch.Redact(item.Sums), err)
	}
	return sum, nil
}

func fileName(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return path.Base(text)
	}
	return path.Base(u.Path)
}

// parseSums finds the digest of file in the output of sha256sum: the line that names it,
// or the only line. A digest alone is one, too.
func parseSums(text, file string) (string, error) {
	var lines [][]string
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(fields[0], "#") {
			lines = append(lines, fields)
		}
	}
	for _, fields := range lines {
		if len(fields) == 2 && sumForm.MatchString(fields[0]) && path.Base(strings.TrimPrefix(fields[1], "*")) == file {
			return strings.ToLower(fields[0]), nil
		}
	}
	if len(lines) == 1 && len(lines[0]) <= 2 && sumForm.MatchString(lines[0][0]) {
		return strings.ToLower(lines[0][0]), nil
	}
	return "", fmt.Errorf("holds no SHA-256 of %q", file)
}

// Check refuses items whose URL nobody may fetch from: plain http to anywhere but localhost and private IP literals.
func Check(items []Item) error {
	for _, item := range items {
		u, err := url.Parse(item.URL)
		if err != nil {
			return fmt.Errorf("%s: %q is not a URL", item, fetch.Redact(item.URL))
		}
		if err := fetch.CheckURL(u); err != nil {
			return fmt.Errorf("%s: %s: %w; change its source in Downloads", item, fetch.Redact(item.URL), err)
		}
	}
	return nil
}

// Result is what Probe found out about one item.
type Result struct {
	Artifact config.Artifact
	Item     Item
	Err      error
}

// Probe tells of each download whether it could be had now, without getting it.
func Probe(ctx context.Context, client fetch.Client, downloads map[config.Artifact]config.Source, arch string) []Result {
	if client.HTTP == nil {
		client.HTTP = fetch.NewHTTP()
	}
	var results []Result
	for _, k := range kinds() {
		for _, item := range k.items(downloads[k.artifact], arch) {
			results = append(results, Result{k.artifact, item, probe(ctx, &client, item)})
		}
	}
	return results
}

func probe(ctx context.Context, client *fetch.Client, item Item) error {
	if item.Sums != "" {
		if _, err := published(ctx, client, item); err != nil {
			return err
		}
	}
	if _, err := client.Probe(ctx, item.URL, nil); err != nil {
		return fmt.Errorf("%s: %w", item, err)
	}
	return nil
}
