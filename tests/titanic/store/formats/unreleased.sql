-- What says which format a store from before the first release has: formats 2 to 4 had the column `oldest`.
CREATE SCHEMA titanic;
CREATE TABLE titanic.meta (one boolean PRIMARY KEY DEFAULT true, format integer NOT NULL, capacity bigint NOT NULL);
ALTER TABLE titanic.meta ADD oldest integer NOT NULL DEFAULT 2;
CREATE TABLE titanic.node (incarnation bigint PRIMARY KEY, name text NOT NULL, lease_until timestamptz NOT NULL);
CREATE TABLE titanic.request (uuid uuid PRIMARY KEY, service bytea NOT NULL, body bytea[] NOT NULL);
INSERT INTO titanic.request VALUES ('00000000-0000-0000-0000-000000000001', 'echo', '{one}');
INSERT INTO titanic.meta (format, capacity) VALUES (4, 1073741824);
