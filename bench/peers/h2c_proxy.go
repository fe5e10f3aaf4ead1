// A bare reverse proxy of Go's standard library that speaks HTTP/2 with prior knowledge on both sides, to measure ours against.
//
// Usage: h2c_proxy LISTEN BACKEND, as in: h2c_proxy 127.0.0.1:9001 http://127.0.0.1:9000
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
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(backend)
			request.SetXForwarded()
			request.Out.Host = request.In.Host
		},
		Transport: &http.Transport{Protocols: protocols},
		// Streams would wait for its buffer otherwise.
		FlushInterval: -1,
	}
	server := &http.Server{Addr: os.Args[1], Handler: proxy, Protocols: protocols}
	log.Fatal(server.ListenAndServe())
}
