package serve

import (
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Fault stands between a request and its answer.
type Fault func(http.Handler) http.Handler

// Answer answers with a status and headers, given as name and value in turn.
func Answer(status int, headers ...string) Fault {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			http.Error(w, http.StatusText(status), status)
		})
	}
}

// Redirect sends the client to the same path of another server.
func Redirect(base string) Fault {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, base+r.URL.RequestURI(), http.StatusTemporaryRedirect)
		})
	}
}

// Cut breaks the connection after so many bytes of the body.
func Cut(after int) Fault {
	return through(func(_ *http.Request, w http.ResponseWriter) body {
		left := after
		return func(data []byte) (int, error) {
			if len(data) < left {
				left -= len(data)
				return w.Write(data)
			}
			_, _ = w.Write(data[:left])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler) // how a handler cuts the connection
		}
	})
}

// Corrupt changes the byte at an offset of the body.
func Corrupt(offset int) Fault {
	return through(func(_ *http.Request, w http.ResponseWriter) body {
		at := 0
		return func(data []byte) (int, error) {
			if at <= offset && offset < at+len(data) {
				data = append([]byte(nil), data...)
				data[offset-at] ^= 0xff
			}
			at += len(data)
			return w.Write(data)
		}
	})
}

// Slow sends the body in pieces with a pause before each.
func Slow(piece int, pause time.Duration) Fault {
	return through(func(r *http.Request, w http.ResponseWriter) body {
		return func(data []byte) (int, error) {
			sent := 0
			for sent < len(data) {
				select {
				case <-r.Context().Done():
					return sent, r.Context().Err()
				case <-time.After(pause):
				}
				n, err := w.Write(data[sent:min(sent+piece, len(data))])
				sent += n
				if err != nil {
					return sent, err
				}
				_ = http.NewResponseController(w).Flush()
			}
			return sent, nil
		}
	})
}

// Hang never answers.
func Hang() Fault {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		})
	}
}

// Gate holds requests back until the channel is closed.
func Gate(open <-chan struct{}) Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-open:
				next.ServeHTTP(w, r)
			case <-r.Context().Done():
			}
		})
	}
}

// Whole answers a request for a range with the whole.
func Whole() Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			next.ServeHTTP(w, r)
		})
	}
}

// Token asks for a bearer token, which the server's own /token gives to a user with
// the password. Plan it for all paths: Fail("", -1, Token(…)).
func Token(base, user, password string) Fault {
	const token = "ground-token"
	same := func(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name, word, _ := r.BasicAuth()
			switch {
			case r.URL.Path == "/token" && same(name, user) && same(word, password):
				fmt.Fprintf(w, `{"token":%q,"access_token":%q,"expires_in":300}`, token, token)
			case r.URL.Path == "/token":
				http.Error(w, "who are you", http.StatusUnauthorized)
			case same(r.Header.Get("Authorization"), "Bearer "+token):
				next.ServeHTTP(w, r)
			default:
				w.Header().Set("WWW-Authenticate", challenge(base, r.URL.Path))
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			}
		})
	}
}

func challenge(base, path string) string {
	name := "any"
	if parts := request.FindStringSubmatch(path); parts != nil {
		name = parts[1]
	}
	return fmt.Sprintf(`Bearer realm="%s/token",service="ground",scope="repository:%s:pull"`,
		strings.TrimSuffix(base, "/"), name)
}

// body receives the body of an answer on its way to the client.
type body func([]byte) (int, error)

// through sends the body of the answer through a function.
func through(wrap func(*http.Request, http.ResponseWriter) body) Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(bodyWriter{w, wrap(r, w)}, r)
		})
	}
}

// bodyWriter hides what else the writer can do, so that no byte passes by.
type bodyWriter struct {
	http.ResponseWriter

	write body
}

func (b bodyWriter) Write(data []byte) (int, error) { return b.write(data) }
