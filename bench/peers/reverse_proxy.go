// A bare reverse proxy of Go's standard library, to measure ours against: no limit, no counting, no timeouts.
//
// Usage: reverse_proxy LISTEN BACKEND PROTOCOL, as in: reverse_proxy 127.0.0.1:9001 http://127.0.0.1:9000 http1
// With h2c it speaks HTTP/2 with prior knowledge on both sides.
package main

import (
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	backend, err := url.Parse(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// The default of 2 idle connections would measure connecting.
	transport.MaxIdleConns = 1000
	transport.MaxIdleConnsPerHost = 1000
	transport.DisableCompression = true
	proxy := &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(backend)
			request.SetXForwarded()
			request.Out.Host = request.In.Host
		},
		Transport: transport,
	}
	server := &http.Server{Addr: os.Args[1], Handler: proxy}
	if os.Args[3] == "h2c" {
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		proxy.Transport = &http.Transport{Protocols: protocols}
		// Streams would wait for its buffer otherwise.
		proxy.FlushInterval = -1
		server.Protocols = protocols
	}
	log.Fatal(server.ListenAndServe())
}
