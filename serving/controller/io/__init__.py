"""The controller's I/O: reflectors, writes through the cluster port, Events, and questions to the activators."""
