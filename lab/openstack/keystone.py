"""Creates the tables of Keystone in an empty database and its first user, then serves Keystone.

Arguments: the configuration, the address and port to serve at, the URL and region in the
catalog; the password of the user admin is in BERTH_LAB_PASSWORD.
"""
import os
import socketserver
import sys
import time
from wsgiref import simple_server

conf, host, port, url, region = sys.argv[1:]
sys.argv = ["keystone"]

import keystone.conf
from keystone.common import sql
from keystone.resource.backends import base
from keystone.server import backends
from keystone.server.flask import core
import sqlalchemy

application = core.initialize_application("public", config_files=[conf])  # loads all models
engine = sqlalchemy.create_engine(keystone.conf.CONF.database.connection)
while True:
    try:
        engine.connect().close()
        break
    except sqlalchemy.exc.OperationalError as e:
        print("waiting for the database:", e.orig, flush=True)
        time.sleep(0.1)
tables = sql.ModelBase.metadata
tables.create_all(engine)
root = base.NULL_DOMAIN_ID  # contains all domains
with engine.begin() as connection:
    connection.execute(tables.tables["project"].insert().values(
        id=root, name=root, domain_id=root, enabled=False, description="", is_domain=True, extra="{}"))
engine.dispose()

from keystone.cmd import bootstrap

backends.load_backends = lambda: {}  # already loaded
first = bootstrap.Bootstrapper()
first.admin_username, first.admin_password = "admin", os.environ.pop("BERTH_LAB_PASSWORD")
first.project_name = first.admin_role_name = "admin"
first.service_name, first.service_id = "keystone", None
first.public_url = first.internal_url = first.admin_url = url
first.region_id = region
first.bootstrap()


class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 128


simple_server.make_server(host, int(port), application, server_class=Server).serve_forever()
